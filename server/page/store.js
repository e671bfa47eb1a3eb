// Conversations and settings, kept in the browser alone.
const KEY = "gguflow.conversations", SETTINGS_KEY = "gguflow.settings", THEME_KEY = "gguflow.theme";
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

// A conversation: {title, messages: [{role, content, note, failed}]}.
const store = {
  conversations: read(KEY, []),
  current: null,
  save() {
    this.conversations = this.conversations.slice(0, MOST);
    write(KEY, this.conversations);
  },
  begin() {
    const empty = this.conversations.find((c) => !c.messages.length);
    if (!empty) this.conversations.unshift({ title: "New conversation", messages: [] });
    this.current = empty || this.conversations[0];
  },
  remove(conversation) {
    this.conversations = this.conversations.filter((c) => c !== conversation);
    if (this.current === conversation) this.current = this.conversations[0] || null;
    if (!this.current) this.begin();
    this.save();
  },
};
store.current = store.conversations[0] || null;
if (!store.current) store.begin();
