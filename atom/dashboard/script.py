"""The page's script: fetches the content again and again, replaces the parts that changed."""

SCRIPT = """
"use strict";
const EVERY_MS = 1000;
const main = document.querySelector("main");

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

async function refresh() {
  try {
    const answer = await fetch("content.html", {cache: "no-store"});
    if (!answer.ok) throw new Error(answer.statusText);
    replaceChanged(await answer.text());
  } catch {
    say("the dashboard has ended; start it again to go on");
  }
  setTimeout(refresh, EVERY_MS);
}

if (main) setTimeout(refresh, EVERY_MS);
"""
