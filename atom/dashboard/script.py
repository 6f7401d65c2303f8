"""The page's script: is sent the content again and again, replaces the parts that changed."""

SCRIPT = """
"use strict";

function say(problem) {
  const status = document.querySelector(".status");
  status.className = "status warn";
  status.textContent = problem;
}

// The server has escaped every text; parsed this way, scripts in it would not run either.
function replaceChanged(html) {
  const fresh = new DOMParser().parseFromString(html, "text/html");
  for (const part of fresh.querySelectorAll("[id]")) {
    const old = document.getElementById(part.id);
    if (old && old.outerHTML !== part.outerHTML) old.replaceWith(document.importNode(part, true));
  }
}

const events = new EventSource("events");
events.onmessage = (event) => replaceChanged(JSON.parse(event.data));
events.onerror = () => say("the dashboard has ended; start it again to go on");
"""
