// Actions that every page has: open a card, change several memories, write a new one, run a command.
// The functions of page.js are already loaded.
"use strict";

// --- a click anywhere on a card opens it -------------------------------------------------------------------------------
const active = "a, button, input, select, textarea, label, summary, details, form";
document.addEventListener("click", (event) => {
  const whole = event.target.closest?.(".card.whole");
  if (!whole || event.target.closest(active) || String(getSelection())) return;
  at("a[data-key=open]", whole)?.click();
});

// --- dialogs: data-dialog names the dialog that a button opens ----------------------------------------------------------
async function offer(id, url, read) {
  const list = document.getElementById(id);
  if (!list || list.children.length) return;
  const names = await call("GET", url).then(read, () => []);
  list.replaceChildren(...names.map((name) => {
    const option = document.createElement("option");
    option.value = name;
    return option;
  }));
}

function show(name) {
  const dialog = document.getElementById(name);
  if (!dialog || dialog.open) return;
  if (name === "palette") list("");
  else offer("project-names", "/api/tags/project", ({ values }) => values.map(({ value }) => value));
  if (name === "move") offer("namespace-names", "/api/namespaces", ({ namespaces }) => namespaces.map((each) => each.name));
  dialog.returnValue = "";
  dialog.showModal();
}

document.addEventListener("click", (event) => {
  const opener = event.target.closest?.("[data-dialog]");
  if (opener) show(opener.dataset.dialog);
  if (event.target.closest?.("[data-dismiss]")) event.target.closest("dialog").close();
  if (event.target.matches?.("dialog")) event.target.close(); // a click outside the dialog
});

function answered(name) {
  const dialog = document.getElementById(name);
  at("form", dialog).reset();
  show(name);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "yes" ? Object.fromEntries(new FormData(at("form", dialog))) : null);
    }, { once: true });
  });
}

// --- several memories at once --------------------------------------------------------------------------------------------
const bar = document.getElementById("selection");
const picked = () => all("input[name=choose]:checked").map((box) => box.value);
function count() {
  if (!bar) return;
  const number = picked().length;
  bar.hidden = number === 0;
  at("[data-chosen]", bar).textContent = number;
  document.body.classList.toggle("choosing", number > 0);
}
addEventListener("memories:shown", count);
document.addEventListener("change", (event) => { if (event.target.name === "choose") count(); });

const AT_ONCE = 80; // maximum number of ids in one expression
async function change(ids, path, body, verb) {
  const backs = [];
  const undo = async () => { for (const back of backs.reverse()) await call("POST", "/api/rollback", back); };
  let changed = 0;
  try {
    for (let first = 0; first < ids.length; first += AT_ONCE) {
      const where = ids.slice(first, first + AT_ONCE).map((id) => `id = "${id}"`).join(" or ");
      const answer = await call("POST", path, { ...body, where });
      changed += answer.count;
      if (answer.undo) backs.push(answer.undo);
    }
  } catch (error) {
    await refresh();
    return changed ? report(`${changed} of ${ids.length} ${verb}, then an error: ${error.message}`, undo) : tell(error.message);
  }
  for (const box of all("input[name=choose]:checked")) box.checked = false;
  await refresh();
  const rest = ids.length - changed;
  const note = rest ? ` ${rest} needed no change, or belong to another namespace.` : "";
  report(`${changed} ${verb}.${note}`, backs.length && undo);
}

async function relocate(ids, to) {
  try {
    const moved = await call("POST", `/api/move?to=${encodeURIComponent(to)}`, { ids });
    changes.none();
    await refresh();
    const [from, back] = [moved.into, moved.namespace].map(encodeURIComponent);
    report(`${moved.count} moved to the namespace ${moved.into}.`, () => call("POST", `/api/move?namespace=${from}&to=${back}`, { ids: moved.ids }));
  } catch (error) { tell(error.message); }
}

const changes = {
  none: () => {
    for (const box of all("input[name=choose]:checked")) box.checked = false;
    count();
  },
  delete: (ids) => change(ids, "/api/delete", {}, "deleted"),
  hide: (ids) => change(ids, "/api/tags", { tags: { recall: "off" } }, "marked as not useful"),
  tag: async (ids) => {
    const tag = await answered("tag");
    if (tag) await change(ids, "/api/tags", { tags: { [tag.key.trim()]: tag.value.trim() } }, "tagged");
  },
  move: async (ids) => {
    const target = await answered("move");
    const [project, namespace] = [target?.value.trim(), target?.namespace?.trim()];
    if (project) await change(ids, "/api/tags", { tags: { project } }, `moved to ${project}`);
    if (namespace) await relocate(ids, namespace);
  },
};
bar?.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-many]");
  if (button) once(bar, () => changes[button.dataset.many](picked()));
});

// --- a new memory -----------------------------------------------------------------------------------------------------------
const writing = document.getElementById("create-form");
async function store(force) {
  const { content, project, type } = Object.fromEntries(new FormData(writing));
  const tags = Object.fromEntries(Object.entries({ project: project.trim(), type }).filter(([, value]) => value));
  const [note, insist] = [document.getElementById("create-answer"), document.getElementById("create-force")];
  try {
    const answer = await call("POST", "/api/memories", { content, tags, force });
    writing.reset();
    note.hidden = insist.hidden = true;
    document.getElementById("create").close();
    await refresh();
    let text = answer.stored ? "Stored." : "It was already stored.";
    if (answer.corrects) text = "Stored; it corrects an older memory.";
    if (answer.redacted?.length) text += ` Redacted: ${answer.redacted.join(", ")}.`;
    report(text, answer.stored && (() => call("DELETE", `/api/memories/${encodeURIComponent(answer.id)}`)));
  } catch (error) {
    const same = error.body?.duplicates ?? [];
    note.textContent = same.length ? `This says nearly the same thing: “${same[0].content}”` : error.message;
    note.hidden = false;
    insist.hidden = !same.length;
  }
}
writing?.addEventListener("submit", (event) => {
  event.preventDefault();
  once(writing, () => store(false));
});
writing?.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("button.main", writing).click();
});
document.getElementById("create-force")?.addEventListener("click", () => once(writing, () => store(true)));

// --- commands: Ctrl K ---------------------------------------------------------------------------------------------------------
const palette = document.getElementById("palette");
const asking = palette && at("input", palette);
const offers = palette && at("ul", palette);
let offered = [];
let current = 0;
let asks = 0;

function commands(text) {
  const pages = all(".top nav a").map((link) => ({ name: `Go to ${link.firstChild.textContent}`, run: () => link.click() }));
  const buttons = [["#new", "New memory"], ["#scheme", "Light or dark"], ["#sign-out", "Sign out"]]
    .filter(([selector]) => at(selector))
    .map(([selector, name]) => ({ name, run: () => at(selector).click() }));
  const chosen = picked().length;
  const many = chosen && bar ? all("[data-many], [data-batch]", bar).map((button) => ({
    name: `${button.textContent} (${chosen} selected)`, run: () => button.click(),
  })) : [];
  const keys = { name: "Keys", run: () => document.getElementById("keys").showModal() };
  const words = text.toLowerCase().split(/\s+/);
  const fitting = [...many, ...buttons, ...pages, keys].filter(({ name }) => words.every((word) => name.toLowerCase().includes(word)));
  const home = new URL(at(".brand").href);
  const to = (path) => {
    const url = new URL(path, location.origin);
    for (const name of ["namespace", "as_of"]) {
      if (home.searchParams.has(name)) url.searchParams.set(name, home.searchParams.get(name));
    }
    return () => location.assign(url);
  };
  if (!text) return { fitting, to };
  const query = encodeURIComponent(text);
  fitting.push({ name: `Search for “${text}”`, run: to(`/?q=${query}`) });
  fitting.push({ name: `What does my agent see with “${text}”?`, run: to(`/agents?message=${query}`) });
  return { fitting, to };
}

function draw() {
  offers.replaceChildren(...offered.map(({ name, kind }, index) => {
    const row = document.createElement("li");
    row.role = "option";
    row.id = `offer-${index}`;
    row.dataset.index = index;
    row.textContent = name;
    row.setAttribute("aria-selected", String(index === current));
    if (kind) row.className = kind;
    return row;
  }));
  asking.setAttribute("aria-activedescendant", offered.length ? `offer-${current}` : "");
  at("[aria-selected=true]", offers)?.scrollIntoView({ block: "nearest" });
}

async function list(text) {
  const number = ++asks;
  const { fitting, to } = commands(text);
  offered = fitting;
  current = 0;
  draw();
  if (text.length < 2) return;
  await new Promise((resolve) => { setTimeout(resolve, 150); });
  if (number !== asks) return;
  const answer = await call("GET", `/api/memories?limit=6&q=${encodeURIComponent(text)}`).catch(() => ({ results: [] }));
  if (number !== asks) return;
  offered = [...fitting, ...answer.results.map(({ id, content }) => ({
    name: content.length > 120 ? `${content.slice(0, 120)} …` : content, kind: "memory", run: to(`/memories/${encodeURIComponent(id)}`),
  }))];
  draw();
}

function run(index) {
  const command = offered[index];
  if (!command) return;
  palette.close();
  command.run();
}

asking?.addEventListener("input", () => list(asking.value.trim()));
asking?.addEventListener("keydown", (event) => {
  const steps = { ArrowDown: 1, ArrowUp: -1 };
  if (event.key in steps && offered.length) {
    event.preventDefault();
    current = (current + steps[event.key] + offered.length) % offered.length;
    draw();
  } else if (event.key === "Enter") {
    event.preventDefault();
    run(current);
  }
});
offers?.addEventListener("click", (event) => run(Number(event.target.closest("li")?.dataset.index)));
palette?.addEventListener("close", () => { asking.value = ""; });
document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k" && palette) {
    event.preventDefault();
    show("palette");
  }
});
count();
