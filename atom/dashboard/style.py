"""How the page looks: light and dark, phone to wide screen. No font or image is fetched."""

ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32" fill="none" stroke="#0e7490" '
    'stroke-width="2"><circle cx="16" cy="16" r="3.5" fill="#0e7490"/>'
    '<ellipse cx="16" cy="16" rx="14" ry="5.5"/>'
    '<ellipse cx="16" cy="16" rx="14" ry="5.5" transform="rotate(60 16 16)"/>'
    '<ellipse cx="16" cy="16" rx="14" ry="5.5" transform="rotate(120 16 16)"/></svg>'
)

STYLE = """
:root {
  color-scheme: light dark;
  --ground: #f4f6f8; --card: #ffffff; --edge: #dfe4ea; --ink: #16202c; --quiet: #5b6878;
  --accent: #0e7490; --area: #0e749018; --good: #15803d; --warn: #a15c00; --bad: #c02626;
  --violet: #7e3bb8;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #10151b; --card: #182029; --edge: #2a3541; --ink: #e6ebf0; --quiet: #93a1b0;
    --accent: #38bdd8; --area: #38bdd820; --good: #4ade80; --warn: #f5b04c; --bad: #f87171;
    --violet: #c792f0;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main { max-width: 66rem; margin: 0 auto; padding: 1.25rem 1rem 2rem; }
main > * + * { margin-top: .75rem; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: .25rem .9rem; }
h1 { margin: 0; font-size: 1.55rem; overflow-wrap: anywhere; }
h2 { margin: 0; font-size: .8rem; font-weight: 600; color: var(--quiet); }
p { margin: 0; }
.quiet { color: var(--quiet); font-size: .8rem; font-weight: 400; }
.good { color: var(--good); } .warn { color: var(--warn); } .bad { color: var(--bad); }
.status { font-size: .85rem; overflow-wrap: anywhere; }
.status::before, .state::before {
  content: ""; display: inline-block; width: .5em; height: .5em; margin-right: .45em;
  border-radius: 50%; background: currentColor; vertical-align: .1em;
}
.card {
  background: var(--card); border: 1px solid var(--edge); border-radius: .6rem;
  padding: .8rem 1rem;
}
.tiles { display: grid; grid-template-columns: repeat(5, 1fr); gap: .75rem; }
.tile { min-width: 0; }
.number { font-size: 1.5rem; font-weight: 600; line-height: 1.3; overflow-wrap: anywhere; }
.number { font-variant-numeric: tabular-nums; }
.count { margin: .2rem 0 .45rem; color: var(--quiet); font-variant-numeric: tabular-nums; }
.count b { color: var(--ink); font-size: 1.15rem; }
progress {
  appearance: none; display: block; width: 100%; height: .6rem; border: 0; border-radius: .3rem;
  overflow: hidden; background: var(--edge);
}
progress::-webkit-progress-bar { background: var(--edge); }
progress::-webkit-progress-value { background: var(--accent); transition: width .3s; }
progress::-moz-progress-bar { background: var(--accent); }
svg { display: block; width: 100%; height: auto; margin-top: .5rem; }
.grid { stroke: var(--edge); stroke-width: 1; }
.grid, .line { vector-effect: non-scaling-stroke; }
.curves { display: grid; grid-template-columns: 1fr 1fr; gap: .75rem; }
.curves > * { min-width: 0; }
.tick { fill: var(--quiet); font-size: 15px; font-variant-numeric: tabular-nums; }
.line { fill: none; stroke: var(--accent); stroke-width: 2; stroke-linejoin: round; }
.area { fill: var(--area); }
.now { fill: var(--accent); }
table { width: 100%; border-collapse: collapse; margin-top: .4rem; }
th { text-align: left; font-size: .75rem; font-weight: 600; color: var(--quiet); }
th, td { padding: .4rem .6rem .4rem 0; white-space: nowrap; }
th:last-child, td:last-child { padding-right: 0; }
tbody tr { border-top: 1px solid var(--edge); }
.n { text-align: right; font-variant-numeric: tabular-nums; }
.n + td:not(.n), .n + th:not(.n) { padding-left: 1.2rem; }
code { white-space: nowrap; }
code { font: .9em ui-monospace, SFMono-Regular, Menlo, "DejaVu Sans Mono", monospace; }
.peers td:nth-child(2) { white-space: normal; overflow-wrap: break-word; }
.trouble { display: block; font-size: .85rem; }
.gone { opacity: .5; }
.contributions progress { display: inline-block; width: 6rem; margin-right: .5rem; }
.rounds .gone { opacity: .75; }
.rounds .n:first-child { text-align: left; }
.accumulating { color: var(--good); }
.reducing { color: var(--accent); }
.stepping { color: var(--violet); }
.starting, .syncing, .paused { color: var(--warn); }
.leaving, .left { color: var(--quiet); }
@media (max-width: 46rem) {
  main { padding: .9rem .7rem 1.5rem; }
  .tiles { grid-template-columns: repeat(6, 1fr); gap: .5rem; }
  .tile { grid-column: span 2; padding: .6rem .7rem; }
  .tile:nth-child(n+4) { grid-column: span 3; }
  .number { font-size: clamp(.9rem, 4.2vw, 1.2rem); }
  .curves { grid-template-columns: 1fr; }
  .tick { font-size: 18px; }
  thead { display: none; }
  table, tbody { display: block; }
  tr { display: grid; grid-template-columns: repeat(3, 1fr); gap: .35rem .6rem; padding: .6rem 0; }
  tbody tr:first-child { border-top: 0; }
  td { display: flex; flex-direction: column; padding: 0; min-width: 0; }
  td.n { text-align: left; }
  td::before { content: attr(data-label); font-size: .7rem; color: var(--quiet); }
  .peers td:nth-child(1), .peers td:nth-child(2) { display: block; }
  .peers td:nth-child(1)::before, .peers td:nth-child(2)::before { content: none; }
  .peers td:nth-child(2) { grid-column: 2 / span 2; text-align: right; }
  .rounds tr { grid-template-columns: repeat(4, 1fr); }
  .rounds td:last-child { grid-column: 1 / -1; display: block; white-space: normal; }
  .rounds td:last-child::before { content: none; }
  .rounds td:empty, .rounds tr:not(:first-child) td::before { display: none; }
  .rounds tr { padding: .25rem 0; }
  .contributions td:nth-child(3) { flex-direction: row; align-items: center; flex-wrap: wrap; }
  .contributions td:nth-child(3)::before { width: 100%; }
  .contributions progress { width: 3.2rem; }
  .n + td:not(.n) { padding-left: 0; }
}
"""
