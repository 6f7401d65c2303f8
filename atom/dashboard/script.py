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

// The browser connects again by itself, and tells of each try in vain; but not after a refusal.
const PATIENCE_MS = 15000;
const events = new EventSource("events");
let silentSince = null;
events.onmessage = (event) => {
  silentSince = null;
  replaceChanged(JSON.parse(event.data));
};
events.onerror = () => {
  silentSince ??= performance.now();
  if (events.readyState === EventSource.CLOSED) {
    say("the dashboard sends nothing more to this page; load it again");
  } else if (performance.now() - silentSince < PATIENCE_MS) {
    say("the dashboard does not answer; connecting again");
  } else {
    say("the dashboard has ended; start it again to go on");
  }
};
"""
