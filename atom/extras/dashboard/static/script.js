// Fetches the content every second, and replaces the parts that changed.
"use strict";

const EVERY_MS = 1000;
const PATIENCE_MS = 15000;
let heardAt = performance.now();

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

async function look() {
  try {
    const answer = await fetch("content", {signal: AbortSignal.timeout(PATIENCE_MS)});
    if (!answer.ok) throw new Error(answer.statusText);
    replaceChanged(await answer.text());
    heardAt = performance.now();
  } catch {
    const waits = performance.now() - heardAt < PATIENCE_MS;
    say(waits ? "the dashboard does not answer; connecting again"
              : "the dashboard has stopped; start it again to continue");
  }
  setTimeout(look, EVERY_MS);
}

look();
