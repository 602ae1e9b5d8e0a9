/* The page's style. Text keeps a contrast of 4.5 in both schemes; series differ in dashes and fillings besides colour. */
#ifndef EXAMPLES_PLAN_STYLE_H_
#define EXAMPLES_PLAN_STYLE_H_

static const char *const plan_style[] = {
    ":root { color-scheme: light dark; --page: #f4f5f7; --card: #ffffff; --ink: #16191d; --soft: #545c66; --rule: "
    "#e3e6ea;",
    "  --base: #8b939d; --a: #1d4fd7; --a-soft: #dbe4fb; --b: #b8450a; --c: #0c7168; --d: #7a3bb8; --mark: #eef3ff; }",
    "@media (prefers-color-scheme: dark) {",
    "  :root { --page: #0e1114; --card: #171b20; --ink: #e9ecef; --soft: #a3acb6; --rule: #2a3037;",
    "    --base: #6d7680; --a: #82a9ff; --a-soft: #26365c; --b: #ff9c5f; --c: #4cd0bc; --d: #c9a2ff; --mark: #1d2740; "
    "}",
    "}",
    "* { box-sizing: border-box; }",
    "body { margin: 0 auto; max-width: 78rem; padding: 1.5rem 1.5rem 2.5rem; background: var(--page); color: "
    "var(--ink);",
    "  font: 15px/1.5 system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif; overflow-wrap: anywhere; "
    "}",
    "h1 { margin: 0; font-size: 2rem; line-height: 1.2; letter-spacing: -0.02em; }",
    "h2 { margin: 0; font-size: 1.08rem; line-height: 1.35; text-wrap: balance; }",
    ".over { margin: 0 0 .2rem; color: var(--soft); font-size: .82rem; letter-spacing: .04em; }",
    ".lead { margin: .3rem 0 .7rem; color: var(--soft); }",
    ".shows { margin: .3rem 0 0; color: var(--soft); font-size: .88rem; }",
    ".strip { display: block; margin-bottom: 1.1rem; }",
    ".strip .linear { fill: var(--a); } .strip .other { fill: none; stroke: var(--base); }",
    ".tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 13.5rem), 1fr)); gap: 1rem; "
    "margin: 0; }",
    ".tile, .card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }",
    ".tile { padding: .8rem 1rem; }",
    ".tile dt { color: var(--soft); font-size: .84rem; } .tile dd { margin: 0; }",
    ".tile b { display: block; font-size: 1.5rem; line-height: 1.3; letter-spacing: -0.01em; }",
    ".tile span { color: var(--soft); font-size: .84rem; }",
    "main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem; "
    "margin-top: 1rem; }",
    ".card { min-width: 0; padding: 1.1rem 1.2rem; display: flex; flex-direction: column; }",
    ".wide { grid-column: 1 / -1; }",
    ".legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; margin: .8rem 0 0; padding: 0; list-style: none; "
    "font-size: .84rem; }",
    ".legend svg { vertical-align: -2px; margin-right: .4rem; }",
    ".plot svg { display: block; overflow: visible; }",
    ".lines { margin-top: auto; padding: 2.9rem 6.4rem 3.2rem 2.9rem; } .bars { padding: .8rem 5.6rem 3.2rem 4.6rem; }",
    "text { fill: var(--ink); font-size: 13px; } .end { text-anchor: end; } .mid { text-anchor: middle; }",
    ".tick, .axis { fill: var(--soft); font-size: 12px; } .value { font-size: 12.5px; font-variant-numeric: "
    "tabular-nums; } text.plan { font-weight: 650; }",
    ".grid { stroke: var(--rule); } .base { stroke: var(--base); }",
    ".series { stroke: var(--line); --line: var(--a); } .series line { stroke-width: 2.25; stroke-linecap: round; }",
    ".series text { stroke: none; } .series .leader { stroke-width: 1.5; stroke-dasharray: none; }",
    ".s1 { --line: var(--b); } .s1 line { stroke-dasharray: 7 5; }",
    ".s2 { --line: var(--c); } .s2 line { stroke-dasharray: 1 5; }",
    ".s3 { --line: var(--d); } .s3 line { stroke-dasharray: 10 4 1 4; }",
    ".mark { fill: var(--card); stroke-width: 2; } .touch { fill: transparent; stroke: none; }",
    "g:hover > .mark { fill: var(--line); }",
    ".p0 { fill: var(--a); } .p1 { fill: url(#hatch); } .p2 { fill: var(--c); } .p3 { fill: var(--base); }",
    ".soft { fill: var(--a-soft); } .hard { fill: var(--b); }",
    "details { margin-top: auto; border-top: 1px solid var(--rule); padding-top: .6rem; }",
    ".lines + details { margin-top: .4rem; }",
    "summary { cursor: pointer; font-size: .88rem; color: var(--soft); } summary:focus-visible { outline: 2px solid "
    "var(--a); }",
    ".scroll { overflow-x: auto; } .scroll:focus-visible { outline: 2px solid var(--a); } table { width: 100%; "
    "border-collapse: collapse; font-size: 12.5px; }",
    "caption { padding: .6rem 0; text-align: left; color: var(--soft); }",
    "th, td { padding: .25rem .35rem; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap;",
    "  font-variant-numeric: tabular-nums; }",
    "thead th { color: var(--soft); font-weight: 500; } tbody th { font-weight: 500; }",
    "td.text { text-align: left; white-space: normal; color: var(--soft); } tr.plan { background: var(--mark); "
    "font-weight: 650; }",
    ".facts { display: grid; grid-template-columns: minmax(6.5rem, auto) 1fr; gap: .3rem 1rem; margin: .7rem 0 0; "
    "font-size: .9rem; }",
    ".facts dt { color: var(--soft); } .facts dd { margin: 0; }",
    "footer { margin-top: 1.2rem; color: var(--soft); font-size: .84rem; }",
    "@media (max-width: 40rem) { body { padding: 1rem .8rem 2rem; font-size: 14.5px; } h1 { font-size: 1.6rem; }",
    "  .card { padding: 1rem .9rem; } table { font-size: 11.5px; } th, td { padding: .25rem .2rem; } .tiles { "
    "grid-template-columns: 1fr 1fr; gap: .6rem; } .tile { padding: .6rem "
    ".7rem; }",
    "  .tile b { font-size: 1.15rem; } main { gap: .7rem; } .facts { grid-template-columns: 1fr; gap: 0; } .facts dd { "
    "margin-bottom: .5rem; } }",
};

#endif
