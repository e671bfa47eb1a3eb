// What other windows of this browser write: the list, the conversation shown and the settings follow.
addEventListener("storage", ({ key, newValue }) => {
  if (key === SETTINGS_KEY) {
    for (const name of Object.keys(settings)) delete settings[name];
    Object.assign(settings, read(SETTINGS_KEY, {}));
  }
  if (!key || !key.startsWith(PREFIX)) return;
  const here = store.conversations.find((c) => PREFIX + c.id === key);
  const shown = here === store.current;
  if (newValue === null) {
    if (!here) return;
    if (shown) halt();
    store.drop(here);
  } else {
    // What is answered or edited here stays as it is, and is the last change when it is kept.
    if (shown && isChanging()) return;
    store.take(read(key, null));
    store.sort();
  }
  if (shown) drawChat();
  else drawConversations();
});

function isChanging() {
  return Boolean($("messages").querySelector(".edit"))
    || Boolean(running && store.current.messages.includes(running.message));
}
