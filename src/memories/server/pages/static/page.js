// The actions of the page: each is a call to the HTTP API, named by the element that starts it.
// Texts of memories enter the document only as text, or as HTML that the server has escaped.
"use strict";

const main = document.getElementById("main");
const told = document.getElementById("told");
const at = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const typing = (target) => target.closest("input:not([type=checkbox]), textarea, select, dialog[open]") !== null;
const isEdited = (within) => all("textarea", within).some((field) => field.value !== field.defaultValue);

// --- messages, and undo ------------------------------------------------------------------------------------------
let hiding = 0;
const undos = []; // how to undo the actions since the last one that can't be undone
function tell(text, canUndo = false) {
  clearTimeout(hiding);
  told.replaceChildren(document.createTextNode(text));
  if (canUndo) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Undo";
    button.addEventListener("click", undoLast);
    told.append(button);
  }
  told.hidden = false;
  hiding = setTimeout(() => { told.hidden = true; }, canUndo ? 15000 : 6000);
}
function report(text, undo, undone = "Undone.") { // an action is done; without `undo`, the key u must not undo an earlier one
  if (undo) undos.push({ undo, undone });
  else undos.length = 0;
  tell(text, Boolean(undo));
}
async function undoLast() {
  const last = undos.pop();
  if (!last) return tell("There is nothing to undo.");
  told.hidden = true;
  try {
    await last.undo();
    await refresh();
    tell(last.undone);
  } catch (error) {
    if (!error.status) undos.push(last); // the server did not answer, so it can be tried again
    tell(error.status === 412 ? "It was changed elsewhere in the meantime; nothing was undone." : error.message);
  }
}

// While an action runs, a second click or key press does nothing.
async function once(element, work) {
  const buttons = element.matches("button") ? [element] : all("button", element);
  for (const each of buttons) each.disabled = true;
  try {
    return await work();
  } finally {
    for (const each of buttons) each.disabled = false;
  }
}

async function call(method, url, body, headers = {}) {
  const options = { method, headers: { ...headers }, credentials: "same-origin", redirect: "error" };
  if (body instanceof Blob) {
    options.body = body;
    options.headers["Content-Type"] = "application/x-ndjson";
  } else if (method !== "GET" && method !== "DELETE") {
    options.body = JSON.stringify(body ?? {});
    options.headers["Content-Type"] = "application/json";
    options.headers["Idempotency-Key"] = crypto.randomUUID();
  }
  const address = new URL(url, location.origin);
  const space = new URLSearchParams(location.search).get("namespace");
  if (space && !address.searchParams.has("namespace")) address.searchParams.set("namespace", space);
  let answer;
  try {
    answer = await fetch(address, options);
  } catch {
    throw new Error("The server did not answer, so the change may not have been saved.");
  }
  const said = await answer.json().catch(() => ({}));
  if (!answer.ok && said.imported === undefined) { // an import with conflicts is a 409 with the import's counts
    const error = new Error(said.detail || said.error || said.title || `The server answered ${answer.status}.`);
    error.status = answer.status;
    error.body = said;
    throw error;
  }
  return said;
}

// --- refreshing: parts of the page are fetched again as HTML and replaced ------------------------------------------
// The reader loses nothing: the focus, ticked boxes, open details and a text in progress are kept.
let asked = 0;
async function refresh(url = location.href) {
  const number = ++asked;
  const answer = await fetch(url, { credentials: "same-origin", headers: { Accept: "text/html" } }).catch(() => null);
  if (number !== asked) return; // a later refresh has started in the meantime
  if (!answer) return tell("The server did not answer. This page may be out of date.");
  if (answer.redirected) { // the sign-in has ended
    return isEdited(document) ? tell("Your sign-in has ended. Copy your text, then reload the page to sign in again.") : location.assign(answer.url);
  }
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  // A click must end on the element that it began on.
  while (at("[data-live] :active")) await new Promise((done) => setTimeout(done, 50));
  if (number !== asked) return;
  if (!answer.ok) return tell(at("#detail", page)?.textContent ?? `The server answered ${answer.status}.`);
  document.title = page.title;
  for (const part of all("[data-live]")) {
    const other = page.getElementById(part.id);
    const inUse = part.contains(document.activeElement.closest("textarea, input:not([type=checkbox])")) || loose("form:not([hidden])", part).length;
    if (other && !inUse) replace(part, other);
  }
  const links = all(".top a", page); // they keep the day that is shown
  all(".top a").forEach((link, index) => link.setAttribute("href", links[index]?.getAttribute("href") ?? link.href));
  const fresh = page.getElementById("edit");
  if (fresh) at("#edit[hidden]")?.replaceWith(fresh); // a closed form gets the current text and version
  enliven();
}

const card = (id, within) => all("[data-item]", within).find((each) => each.dataset.item === id);
const loose = (selector, within) => all(selector, within).filter((each) => !each.closest("[data-item]"));
const alike = (one) => (other) => other.tagName === one.tagName && (one.hasAttribute("href")
  ? other.getAttribute("href") === one.getAttribute("href")
  : other.textContent === one.textContent && other.getAttribute("name") === one.getAttribute("name"));
const editing = (within) => all("textarea", within).some((field) => !field.closest("[hidden]"));
function replace(part, other) {
  const chosen = all("input[type=checkbox]:checked", part).map((box) => box.value);
  const opened = all("[data-item]:has(details[open])", part).map((each) => each.dataset.item);
  const begun = all("[data-item]", part).filter(editing);
  const shown = loose("details", part).map((each) => each.open);
  const focus = document.activeElement;
  const inside = part.contains(focus);
  const [item, key] = inside ? [focus.closest("[data-item]")?.dataset.item, focus.dataset.key] : [];
  part.replaceChildren(...other.childNodes);
  for (const box of all("input[type=checkbox]", part)) box.checked = chosen.includes(box.value);
  for (const id of opened) for (const each of all("details", card(id, part) ?? document.createElement("p"))) each.open = true;
  loose("details", part).forEach((each, index) => { each.open ||= shown[index] ?? false; });
  for (const each of begun) {
    const fresh = card(each.dataset.item, part);
    if (fresh) fresh.replaceWith(each);
    else part.prepend(each);
  }
  const found = item && card(item, part);
  if (found?.contains(focus)) focus.focus({ preventScroll: true }); // the card was kept, because a text in it is being edited
  else if (inside) {
    const within = found || part;
    const same = (key && at(`[data-key="${key}"]`, within)) || all(focus.tagName, within).find(alike(focus));
    (same || found)?.focus({ preventScroll: true });
  }
}

// --- actions: data-do="METHOD URL", with data-body, data-done, data-counts, data-undo, data-undo-body, data-etag, data-then, data-ask ---
function ask(dialogId) {
  const dialog = document.getElementById(dialogId);
  const word = at("[data-word]", dialog);
  const go = at("button[value=yes]", dialog);
  if (word) {
    word.value = "";
    go.disabled = true;
    word.oninput = () => { go.disabled = word.value.trim() !== word.dataset.word; };
  }
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true });
  });
}

async function act(element, body) {
  const { do: what, done, counts, undo, undoBody, undone, etag, then } = element.dataset;
  const [method, url] = what.split(" ");
  const decided = element.closest("[data-item]");
  const isDecision = ["accept", "reject"].includes(element.dataset.key);
  decided?.classList.toggle("gone", isDecision);
  try {
    const said = await call(method, url, body ?? JSON.parse(element.dataset.body || "{}"), etag ? { "If-Match": etag } : {});
    if (etag && said.version) element.dataset.etag = `"${said.version}"`; // the next edit is based on this version
    if (then) {
      location.assign(then);
      return;
    }
    if (element.matches("form") && !etag) element.reset(); // its text has been sent
    if (element.contains(document.activeElement)) document.activeElement.blur();
    for (const form of decided ? all("form", decided) : []) form.hidden = true;
    const opener = !decided && element.matches("form[id]") ? `[data-open="${element.id}"]` : null;
    if (opener) toggle(at(opener));
    await refresh();
    if (opener && document.activeElement === document.body) at(opener)?.focus();
    const next = decided && selected !== null && card(selected, document); // keyboard users continue from there
    next?.focus?.({ preventScroll: true });
    const before = JSON.parse(undoBody || "{}");
    const match = before.version ? { "If-Match": `"${said.version}"` } : {}; // an undo must not replace a later change
    const calls = undo ? undo.split("\n").map((each) => [...each.split(" "), before, match]) : [];
    if (!undo && said.undo) calls.push(["POST", "/api/rollback", said.undo]);
    const text = counts?.replace(/\{(\w+)\}/g, (_, name) => said[name]) ?? (said.hint || said.note || done || "Done.");
    report(text, calls.length && (async () => { for (const each of calls) await call(...each); }), undone);
  } catch (error) {
    const stale = error.status === 412;
    decided?.classList.remove("gone");
    tell(stale ? "It was changed elsewhere in the meantime; nothing was saved. Your text is still here; reload to see the other version." : error.message);
  }
}

function toggle(opener) {
  const part = document.getElementById(opener.dataset.open);
  part.hidden = !part.hidden;
  opener.setAttribute("aria-expanded", String(!part.hidden));
  if (!part.hidden) at("textarea, input:not([type=hidden])", part)?.focus();
}

document.addEventListener("click", async (event) => {
  const opener = event.target.closest("button[data-open]");
  if (opener) toggle(opener);
  const element = event.target.closest("button[data-do]");
  if (element && (!element.dataset.ask || (await ask(element.dataset.ask)))) once(element, () => act(element));
});

// A form sends its fields as one JSON object; data-as says how to read a field that isn't plain text.
const reading = {
  edit: (field) => (field.value === field.defaultValue ? undefined : field.value), // browsers read \r\n as \n
  list: (field) => [field.value],
  tags: (field) => Object.fromEntries(field.value.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
    const [key, ...rest] = line.split("=");
    return [key.trim(), rest.join("=").trim()];
  })),
};

function fields(form) {
  const body = {};
  for (const field of form.elements) {
    if (field.name) body[field.name] = field.dataset.as ? reading[field.dataset.as](field) : field.value;
  }
  if (form.dataset.removed) { // the tags before the edit
    body.remove_tags = JSON.parse(form.dataset.removed).filter((key) => !(key in body.tags));
  }
  return form.dataset.rename ? { rename_tags: { [form.dataset.rename]: form.dataset.prefix + body.to } } : body;
}

document.addEventListener("submit", (event) => {
  const form = event.target.closest("form[data-do]");
  if (!form) return;
  event.preventDefault();
  if (form.dataset.etag && !isEdited(form)) return tell("Nothing was changed.");
  const file = at("input[type=file]", form);
  if (file && !file.files.length) return tell("Choose a file first.");
  once(form, () => act(form, file ? file.files[0] : fields(form)));
});

// --- search as you type ---------------------------------------------------------------------------------------------
const search = at("form#find");
let waiting = 0;
function address() {
  const fields = [...new FormData(search)].filter(([, value]) => value !== "");
  const query = new URLSearchParams(fields).toString();
  return search.action.split("?")[0] + (query ? `?${query}` : "");
}
search?.addEventListener("input", (event) => {
  if (event.target.type === "range") return;
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    history.replaceState(null, "", address());
    refresh(address());
  }, 120);
});

// --- the day that is shown: a slider over the plot -------------------------------------------------------------------
const wide = matchMedia("(min-width: 46rem)");
let facetsOpen = false; // on a phone, the facets are behind a button
function enliven() {
  const slider = at("input[data-days]");
  if (slider) {
    const [days, times] = [JSON.parse(slider.dataset.days), JSON.parse(slider.dataset.times)];
    const output = at("output[for=day]");
    slider.closest("[hidden]")?.removeAttribute("hidden");
    slider.oninput = () => { output.textContent = Number(slider.value) === days.length ? "now" : days[slider.value]; };
    slider.onchange = () => {
      const url = new URL(location.href);
      if (Number(slider.value) === days.length) url.searchParams.delete("as_of");
      else url.searchParams.set("as_of", times[slider.value]);
      for (const name of ["cursor", "before"]) url.searchParams.delete(name);
      history.pushState(null, "", url);
      refresh();
    };
  }
  const facets = at("details.facets");
  if (facets) {
    facets.open = wide.matches || facetsOpen;
    facets.ontoggle = () => { if (!wide.matches) facetsOpen = facets.open; };
  }
  choose(0);
  dispatchEvent(new Event("memories:shown"));
}
addEventListener("popstate", () => {
  const field = at("#q");
  if (field) field.value = new URLSearchParams(location.search).get(field.name) ?? "";
  refresh();
});

// --- live: one stream for all tabs, held by the tab that got the lock -------------------------------------------------
const feed = document.body.dataset.changes;
if (feed && "BroadcastChannel" in window) {
  const channel = new BroadcastChannel(`memories ${feed}`);
  let soon = 0, last = 0;
  const changed = () => { // at most once a second, however many changes there are
    soon ||= setTimeout(() => {
      soon = 0;
      last = Date.now();
      if (!new URL(location.href).searchParams.has("as_of") && !document.hidden) refresh();
    }, Math.max(250, last + 1000 - Date.now()));
  };
  const mine = document.body.dataset.seen; // this page's position; the stream does not repeat older changes
  let told = ""; // the stream's last position, in the tab that holds the stream
  channel.onmessage = ({ data }) => {
    if (data.seen === undefined) changed();
    else if (told && data.seen !== told) channel.postMessage({});
  };
  channel.postMessage({ seen: mine });
  const pass = () => { channel.postMessage({}); changed(); };
  const open = () => {
    const source = new EventSource(feed);
    source.addEventListener("ready", (event) => { told = event.lastEventId; if (told !== mine) pass(); });
    for (const name of ["change", "reset"]) {
      source.addEventListener(name, (event) => { told = event.lastEventId; pass(); });
    }
    source.onerror = () => { // a browser reconnects by itself unless it was refused
      if (source.readyState === EventSource.CLOSED) setTimeout(() => { open(); pass(); }, 30000);
    };
  };
  const listen = () => new Promise(open);
  if (navigator.locks) navigator.locks.request(`memories ${feed}`, listen);
  else listen();
  document.addEventListener("visibilitychange", () => { if (!document.hidden) changed(); });
}

// --- keyboard: / search, j and k move, a accept, r reject, e edit, s skip, x select, u undo, n new, ? help ------------------
// The selection is a memory, not a position, because others may appear and disappear above it.
let selected = null;
let order = [];
function choose(step) {
  const cards = all("[data-item]");
  const ids = cards.map((each) => each.dataset.item);
  if (selected !== null && !ids.includes(selected)) { // it is gone: select the next one, or the last
    selected = order.slice(order.indexOf(selected)).find((id) => ids.includes(id)) ?? ids.at(-1) ?? null;
  }
  order = ids;
  const place = Math.min(Math.max(ids.indexOf(selected) + step, 0), ids.length - 1);
  if (step && ids.length) selected = ids[place];
  cards.forEach((each, index) => each.toggleAttribute("data-selected", ids[index] === selected));
  if (step && ids.length) {
    cards[place].focus({ preventScroll: true });
    cards[place].scrollIntoView({ block: "nearest" });
  }
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && search?.contains(event.target)) {
    event.preventDefault(); // browsers would clear the field but not the results
    event.target.blur();
  }
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
  let chosen = selected === null ? null : card(selected, document);
  const press = (name) => {
    if (!chosen && at("#queue")) { // the review begins with the first memory
      choose(1);
      chosen = selected === null ? null : card(selected, document);
    }
    if (chosen) at(`[data-key="${name}"]`, chosen)?.click();
  };
  const decide = (name) => { // the next key applies to the next memory, even before the answer arrives
    press(name);
    if (chosen) choose(1);
  };
  const keys = {
    "/": () => at("#q") ? at("#q").focus() : location.assign(at(".brand").href),
    j: () => choose(1),
    k: () => choose(-1),
    Enter: () => event.target === chosen && at("a[data-key=open]", chosen)?.click(),
    a: () => decide("accept"),
    r: () => decide("reject"),
    e: () => (chosen || at("#queue") ? press("edit") : at("[data-key=edit]")?.click()),
    s: () => { if (at("#queue")) choose(selected === null ? 2 : 1); },
    x: () => press("choose"),
    n: () => at("#new")?.click(),
    u: undoLast,
    "?": () => document.getElementById("keys")?.showModal(),
  };
  if (keys[event.key]) {
    if (event.key !== "Enter") event.preventDefault();
    keys[event.key]();
  }
});

// --- the review queue in batches -----------------------------------------------------------------------------------------
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-batch]");
  if (!button) return;
  const ids = all("input[name=choose]:checked").map((box) => box.value);
  if (!ids.length) return;
  button.dataset.body = JSON.stringify({ ids });
  button.dataset.do = button.dataset.batch;
  const { each, back } = button.dataset;
  if (back) { // restores all of them to their state when the page was rendered
    const undos = ids.map((id) => JSON.parse(at("[data-undo-body]", card(id, document)).dataset.undoBody));
    button.dataset.undo = "POST /api/rollback";
    button.dataset.undoBody = JSON.stringify({ to: undos[0].to, where: undos.map((each) => each.where).join(" or ") });
  }
  if (each) button.dataset.undo = ids.map((id) => each.replace("{id}", encodeURIComponent(id))).join("\n");
  await once(button, () => act(button));
  delete button.dataset.do;
});
document.addEventListener("change", (event) => {
  if (event.target.id !== "everything") return;
  for (const box of all("input[name=choose]:not([data-suspicious])")) box.checked = event.target.checked; // suspicious ones only one by one
  all("input[name=choose]")[0]?.dispatchEvent(new Event("change", { bubbles: true }));
});

// --- light or dark ------------------------------------------------------------------------------------------------------
const scheme = at("button#scheme");
function paint() {
  const chosen = localStorage.getItem("memories-scheme");
  if (chosen) document.documentElement.dataset.scheme = chosen;
}
scheme?.addEventListener("click", () => {
  const dark = getComputedStyle(document.documentElement).colorScheme === "dark"
    || (!document.documentElement.dataset.scheme && matchMedia("(prefers-color-scheme: dark)").matches);
  localStorage.setItem("memories-scheme", dark ? "light" : "dark");
  paint();
});
paint();
for (const button of all("#scheme, #sign-out")) button.hidden = false;

// --- signing in: the token follows the # of the address, which browsers don't send -------------------------------------
const login = at("form#login");
login?.addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await call("POST", login.dataset.session, { token: at("input", login).value.trim() });
    const next = new URLSearchParams(location.search).get("next") || "/";
    location.replace(new URL(next, location.origin).origin === location.origin ? next : "/");
  } catch (error) { tell(error.message); }
});
function signInByLink() {
  if (!login || location.hash.length < 2) return;
  at("input", login).value = location.hash.slice(1);
  history.replaceState(null, "", location.pathname + location.search);
  login.requestSubmit();
}
addEventListener("hashchange", signInByLink);
signInByLink();

enliven();
