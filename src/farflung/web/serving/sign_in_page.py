"""The page for people without a cookie. Its script posts the token of the address, or a pasted ticket; it loads nothing."""

from __future__ import annotations

import base64
import hashlib

__all__ = ["PAGE_POLICY", "sign_in_page"]

_SCRIPT = """
const say = document.getElementById("say"), form = document.querySelector("form"), field = document.getElementById("secret");
let to = "/";
try {  // browsers read "/\\t/other.example" and the like as another site, so they decide
  const asked = new URL(new URLSearchParams(location.search).get("to") || "/", location.origin);
  if (asked.origin === location.origin) to = asked.href;
} catch { }
async function signIn(body) {
  say.textContent = "Signing in ...";
  const answer = await fetch("/sign-in", {method: "POST", body: JSON.stringify(body)});
  if (answer.status === 204) location.replace(to);
  else { say.textContent = await answer.text(); form.hidden = false; field.focus(); }
}
const signInWith = (text) => signIn(text.startsWith("farflung1-") ? {ticket: text} : {token: text});
const given = location.hash.slice(1);
if (given) { history.replaceState(null, "", location.pathname + location.search); signInWith(given); }
else form.hidden = false;
form.addEventListener("submit", (event) => {
  event.preventDefault();
  signInWith(field.value.trim().split("#").pop());
});
"""
_STYLE = """
:root { color-scheme: light dark; --ink: #1d2a30; --soft: #55636a; --paper: #fff; --ground: #f4f6f7; --line: #c3ccd1;
  --accent: #1a5fb4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8edf0; --soft: #a3b0b7; --paper: #171d20; --ground: #0d1113; --line: #46535a; --accent: #7db4f0; }
}
body { margin: 0; min-height: 100vh; display: grid; place-items: center; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
main { width: min(440px, calc(100vw - 48px)); background: var(--paper); border: 1px solid var(--line); border-radius: 12px;
  padding: 28px; box-sizing: border-box; }
h1 { font-size: 20px; margin: 0 0 8px; } p { color: var(--soft); margin: 0 0 16px; overflow-wrap: anywhere; }
label { display: block; font-weight: 600; margin-bottom: 6px; }
input { width: 100%; box-sizing: border-box; font: inherit; padding: 9px 11px; border: 1px solid var(--line); border-radius: 8px;
  background: var(--ground); color: var(--ink); }
button { margin-top: 14px; font: inherit; font-weight: 600; padding: 9px 18px; border: 0; border-radius: 8px;
  background: var(--accent); color: var(--paper); cursor: pointer; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
#say { color: var(--ink); margin: 14px 0 0; min-height: 1.5em; }
code { font-size: 0.93em; }
"""


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


#: The page runs its one script and nothing else.
PAGE_POLICY = (
    f"default-src 'none'; script-src {_hash(_SCRIPT)}; style-src {_hash(_STYLE)}; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def sign_in_page() -> str:
    """Return the page as HTML."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sign in – farflung</title><link rel="icon" href="data:,"><style>{_STYLE}</style></head>
<body><main><h1>farflung dashboard</h1>
<p>Open the link that the broker printed, or run <code>farflung web</code> on its machine for a new link.
A submit or owner ticket works, too.</p>
<form hidden><label for="secret">Link or ticket</label>
<input id="secret" name="secret" autocomplete="off" spellcheck="false" required>
<button type="submit">Sign in</button></form>
<p id="say" role="status"></p></main>
<script>{_SCRIPT}</script></body></html>
"""
