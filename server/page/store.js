// Conversations and settings, kept in the browser alone. Windows share what is kept: each writes the
// conversations it has changed, each under a key of its own, and hears of what others write.
const OLD_KEY = "gguflow.conversations"; // where all of them stood in one list
const PREFIX = "gguflow.conversation.", SETTINGS_KEY = "gguflow.settings", THEME_KEY = "gguflow.theme";
const MOST = 200;

function read(key, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function write(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch { /* storage is full or forbidden: the page works without */ }
}

function forget(key) {
  try {
    localStorage.removeItem(key);
  } catch { /* storage is forbidden: nothing is there */ }
}

function keys() {
  try {
    return Object.keys(localStorage);
  } catch {
    return [];
  }
}

// randomUUID is not there for pages of plain http from another machine.
const newId = () => [...crypto.getRandomValues(new Uint32Array(4))].map((n) => n.toString(36)).join("");

// A conversation: {id, changed, title, messages: [{role, content, note, failed}]}; changed: when, by
// which they are in order. One without messages is not kept.
const store = {
  conversations: [],
  current: null,
  load() {
    this.divide(read(OLD_KEY, []));
    for (const key of keys()) if (key.startsWith(PREFIX)) this.take(read(key, null));
    this.sort();
    this.current = this.conversations[0] || null;
    if (!this.current) this.begin();
  },
  // Gives each of the old list its own key.
  divide(old) {
    if (!Array.isArray(old)) return;
    forget(OLD_KEY); // first: there may be no room for both
    const now = Date.now();
    old.filter((c) => c.messages?.length).forEach((c, i) => {
      const kept = { ...c, id: c.id || newId(), changed: now - i };
      this.take(kept);
      write(PREFIX + kept.id, kept);
    });
  },
  sort() {
    this.conversations.sort((a, b) => b.changed - a.changed);
  },
  // One as it is kept, unless it was changed here since; those here stay the same objects.
  take(kept) {
    if (!kept || !Array.isArray(kept.messages)) return;
    const here = this.conversations.find((c) => c.id === kept.id);
    if (here && here.changed > kept.changed) return; // there was no room to keep it
    if (here) Object.assign(here, kept);
    else this.conversations.push(kept);
  },
  save(conversation) {
    if (!this.conversations.includes(conversation)) return; // deleted while its answer came
    conversation.changed = Date.now();
    this.sort();
    write(PREFIX + conversation.id, conversation);
    for (const c of this.conversations.slice(MOST)) if (c !== this.current) this.remove(c);
  },
  begin() {
    let empty = this.conversations.find((c) => !c.messages.length);
    if (!empty) {
      empty = { id: newId(), changed: Date.now(), title: "New conversation", messages: [] };
      this.conversations.unshift(empty);
    }
    this.current = empty;
  },
  remove(conversation) {
    forget(PREFIX + conversation.id);
    this.drop(conversation);
  },
  drop(conversation) {
    this.conversations = this.conversations.filter((c) => c !== conversation);
    if (this.current === conversation) this.current = this.conversations[0] || null;
    if (!this.current) this.begin();
  },
};
store.load();
