// Keeps a page alive: hears that something happened, asks for the page again, and puts in what has changed. Everything can be
// read without it.
"use strict";

const REFRESH = 2000, IDLE = 10000;
const $ = (id) => document.getElementById(id);

// Times: in the viewer's zone, and how long ago.
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "UTC";
const clock = new Intl.DateTimeFormat("sv-SE", { dateStyle: "short", timeStyle: "medium", timeZone: zone });
function span(seconds) {
  for (const [least, unit, name] of [[172800, 86400, "d"], [7200, 3600, "h"], [120, 60, "min"]])
    if (seconds >= least) return `${Math.round(seconds / unit)} ${name}`;
  return seconds >= 10 ? `${Math.round(seconds)} s` : `${seconds.toFixed(1)} s`;
}
function tell(root) {
  const now = Date.now();
  for (const one of root.querySelectorAll("time[data-ago]")) {
    const at = Date.parse(one.dateTime), past = (now - at) / 1000;
    const text = Math.abs(past) < 1 ? "now" : past > 0 ? `${span(past)} ago` : `in ${span(-past)}`;
    if (one.textContent !== text) one.textContent = text;
    one.title = `${clock.format(at)} (${zone})`;
  }
  for (const one of root.querySelectorAll("time[data-local]")) {
    const text = clock.format(Date.parse(one.dateTime));
    if (one.textContent !== text) { one.title = `${one.textContent}`; one.textContent = text; }
  }
}

// The page again, where it has changed.
let under = false, wanted = false, last = 0;
// A link or a button that is replaced between press and release swallows the click.
let pressed = null;
document.addEventListener("pointerdown", (event) => { if (event.button === 0) pressed = event.target; }, true);
for (const end of ["pointerup", "pointercancel", "contextmenu", "dragend", "blur"]) {
  window.addEventListener(end, (event) => { if (end !== "blur" || event.target === window) setTimeout(() => { pressed = null; }); }, true);
}
function busy(part) {
  const focus = document.activeElement;
  return part.contains(pressed) || (focus && focus !== document.body && part.contains(focus) && /^(INPUT|SELECT|TEXTAREA)$/.test(focus.tagName))
    || part.querySelector("input[type=checkbox]:checked, details[open]");
}
const STOPS = "a[href], button, summary, [tabindex]";
function swap(part, other) {
  // Who goes through the page by keyboard stays where he is.
  const place = [...part.querySelectorAll(STOPS)].indexOf(document.activeElement);
  part.innerHTML = other.innerHTML;
  if (place >= 0) part.querySelectorAll(STOPS)[place]?.focus({ preventScroll: true });
}
async function refresh() {
  if (under || document.hidden || !document.querySelector("[data-live]")) return;
  under = true; wanted = false; last = Date.now();
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" });
    if (answer.type === "opaqueredirect") location.reload(); // signed out meanwhile
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    tell(fresh);
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(part.id);
      if (other && other.innerHTML !== part.innerHTML && !busy(part)) swap(part, other);
    }
    document.documentElement.dataset.refreshed = String(Date.now());
  } catch { /* the next try will tell */ } finally { under = false; }
}
function soon() {
  if (wanted) return;
  wanted = true;
  setTimeout(refresh, Math.max(50, last + REFRESH - Date.now()));
}

// One stream for all tabs: a browser has six connections to a server, and a stream keeps one. Who has the lock listens and tells
// the others; where there are no locks (plain HTTP to another machine), only the tab in front listens.
const AGAIN = 3000;
function listen() {
  if (!document.querySelector("[data-live]") || !window.EventSource) return;
  const light = $("live"), others = new BroadcastChannel("hourhand");
  let source = null, on = false;
  const show = (now) => { light.textContent = now ? "live" : "reconnecting"; light.classList.toggle("off", !now); };
  const say = (now, news) => { on = now; show(now); others.postMessage({ on: now, news }); if (news) soon(); };
  const open = () => {
    source = new EventSource("/api/v1/events");
    source.onopen = () => say(true, true);
    source.onerror = () => { say(false); if (source && source.readyState === EventSource.CLOSED) setTimeout(() => source && open(), AGAIN); };
    for (const kind of ["change", "runs", "gap"]) source.addEventListener(kind, () => say(true, true));
  };
  const close = () => { if (source) source.close(); source = null; };
  others.onmessage = ({ data }) => {
    if (data === "who") { if (source) others.postMessage({ on }); return; }
    show(data.on);
    if (data.news) soon();
  };
  light.hidden = false;
  show(false);
  if (navigator.locks) {
    navigator.locks.request("hourhand", () => new Promise(() => open()));
    others.postMessage("who");
  } else open();
  setInterval(() => { if (Date.now() - last > IDLE) refresh(); }, 1000);
  document.addEventListener("visibilitychange", () => {
    if (!navigator.locks) { close(); if (!document.hidden) open(); }
    if (!document.hidden) soon();
  });
  window.addEventListener("pagehide", close);
}

// Light or dark, as chosen; otherwise as the system says.
function theme() {
  const button = $("theme"), root = document.documentElement;
  const kept = (() => { try { return localStorage.getItem("theme"); } catch { return null; } })();
  if (kept) root.dataset.theme = kept;
  if (!button) return;
  button.hidden = false;
  button.addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* for this page only */ }
  });
}

// Keys: / to search, g and a letter to go somewhere.
const places = { o: "/", j: "/jobs", r: "/runs", d: "/dead", q: "/queues", n: "/nodes", a: "/alerts", f: "/forecast" };
let going = false;
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  if (going && places[event.key]) { location.href = places[event.key]; return; }
  going = event.key === "g";
  const search = document.querySelector("input[type=search]");
  if (event.key === "/" && search) { event.preventDefault(); search.focus(); search.select(); }
});

// Many at once: one box for all of them, and how many are chosen.
document.addEventListener("change", (event) => {
  const box = event.target;
  if (box.matches("[data-all]"))
    for (const one of document.querySelectorAll(`input[name="${box.dataset.all}"]`)) one.checked = box.checked;
  if (box.matches("select[data-submit]")) box.form.requestSubmit();
  for (const count of document.querySelectorAll("[data-chosen]"))
    count.textContent = document.querySelectorAll(`input[name="${count.dataset.chosen}"]:checked`).length || "no";
});

theme();
document.addEventListener("DOMContentLoaded", () => {
  tell(document);
  setInterval(() => tell(document), 1000);
  if ($("zone")) $("zone").textContent = zone;
  if (document.body.hasAttribute("data-retry")) setTimeout(() => location.reload(), 3000);
  listen();
});

// A form that shows what would come of it: sent as it stands, to be looked at and not to be saved.
let tried = 0;
async function attempt(form) {
  const mine = ++tried, given = new URLSearchParams(new FormData(form));
  given.set("do", "preview");
  try {
    const answer = await fetch(form.action, { method: "POST", body: given, headers: { Accept: "text/html" } });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("preview");
    if (mine !== tried || !fresh) return;
    tell(fresh);
    $("preview").replaceChildren(...fresh.childNodes);
    $("preview-said").textContent = $("preview").querySelector("p").textContent;
  } catch { /* the next letter will tell */ }
}
document.addEventListener("input", (event) => {
  const form = event.target.form;
  if (form && form.matches("[data-try]")) { clearTimeout(form.later); form.later = setTimeout(() => attempt(form), 300); }
});
document.addEventListener("DOMContentLoaded", () => {  // what was written before this script had come, or was kept by the browser
  for (const form of document.querySelectorAll("form[data-try]"))
    if ([...form.elements].some((field) => "defaultValue" in field && field.value !== field.defaultValue)) attempt(form);
});

// A page about something that goes on is asked for again without a word from the server: what a run says is no event.
setInterval(() => { if (document.querySelector("[data-eager]")) soon(); }, 1000);

// A search that has found nothing so far goes on by itself, a bounded part at a time.
async function onward() {
  for (let link; (link = document.querySelector("a[data-onward]")); await new Promise((done) => setTimeout(done, 50))) {
    const answer = await fetch(link.href, { headers: { Accept: "text/html" } }).catch(() => null);
    if (!answer || !answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    tell(fresh);
    for (const id of ["jobs", "pager"]) $(id).replaceChildren(...fresh.getElementById(id).childNodes);
    history.replaceState(null, "", link.href);
  }
}
document.addEventListener("DOMContentLoaded", onward);
