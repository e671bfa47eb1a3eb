// The conversation: messages, the answer as it comes, editing and answering again.
let running = null; // {abort, message} while an answer comes

function drawConversations() {
  $("conversations").replaceChildren(...store.conversations.map((c) => h("li", { class: c === store.current ? "on" : "" },
    h("button", { class: "name", title: c.title, onclick: () => open(c) }, c.title),
    h("button", { class: "small", "aria-label": `Delete ${c.title}`, title: "Delete", onclick: () => {
      if (c === store.current) halt();
      store.remove(c);
      drawChat();
    } }, "×"))));
}

function open(conversation) {
  halt();
  store.current = conversation;
  $("side").classList.remove("open");
  drawChat();
  $("input").focus();
}

function drawChat() {
  drawConversations();
  const { messages } = store.current;
  $("messages").replaceChildren(...(messages.length ? messages.map(drawMessage)
    : [h("p", { class: "empty" }, "Say something to begin.")]));
  $("messages").scrollTop = $("messages").scrollHeight;
}

function drawMessage(message, i) {
  const mine = message.role === "user", live = running && running.message === message;
  const body = h("div", { class: "body" });
  fill(body, message, live);
  const foot = h("div", { class: "foot" }, h("span", { class: "told" }, message.note || ""));
  if (!live) {
    foot.append(h("button", { class: "small", onclick: () => copyText(message.content) }, "copy"));
    foot.append(h("button", { class: "small", onclick: () => edit(i) }, "edit"));
    if (!mine) foot.append(h("button", { class: "small", onclick: () => again(i) }, "again"));
  }
  const kind = `message ${mine ? "user" : "assistant"}${message.failed ? " failed" : ""}`;
  return h("article", { class: kind, "aria-label": mine ? "You" : "Model" },
    h("div", { class: "who" }, mine ? "You" : message.model || "Model"), body, foot);
}

function fill(body, message, live) {
  if (message.role === "user") body.replaceChildren(message.content);
  else body.replaceChildren(...thoughts(message, body), ...markdown(message.content));
  body.classList.toggle("cursor", Boolean(live) && !message.content);
}

function edit(i) {
  halt();
  const message = store.current.messages[i];
  const area = h("textarea", { class: "edit", value: message.content, "aria-label": "Edit the message" });
  const done = (send) => {
    message.content = area.value;
    if (send && message.role === "user") {
      store.current.messages.length = i + 1;
      store.save(store.current);
      answer();
    } else {
      store.save(store.current);
      drawChat();
    }
  };
  const cancel = () => {
    store.take(read(PREFIX + store.current.id, null)); // another window may have gone on meanwhile
    drawChat();
  };
  $("messages").children[i].querySelector(".body").replaceChildren(area);
  $("messages").children[i].querySelector(".foot").replaceChildren(
    h("button", { class: "small", onclick: () => done(true) }, message.role === "user" ? "send" : "keep"),
    h("button", { class: "small", onclick: cancel }, "cancel"));
  area.addEventListener("keydown", (e) => {
    if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) done(true);
    if (e.key === "Escape") { e.stopPropagation(); cancel(); }
  });
  area.focus();
}

function again(i) {
  halt();
  store.current.messages.length = i;
  store.save(store.current);
  answer();
}

function say(text) {
  const { messages } = store.current;
  if (!messages.length) store.current.title = text.slice(0, 60);
  messages.push({ role: "user", content: text });
  store.save(store.current);
  answer();
}

// What the model thought before it answered: open while it does, unless somebody closed it.
function thoughts(message, body) {
  if (!message.thought) return [];
  const before = body.querySelector(".thought");
  const open = before && before.dataset.done === String(Boolean(message.content)) ? before.open : !message.content;
  return [h("details", { class: "thought", open, "data-done": String(Boolean(message.content)) },
    h("summary", {}, "thoughts"), h("div", {}, message.thought))];
}

function halt() {
  if (running) running.abort.abort();
}

async function answer() {
  const conversation = store.current, model = $("model").value;
  const sent = conversation.messages.filter((m) => !m.failed)
    .map(({ role, content, thought }) => ({ role, content, ...(thought && { reasoning_content: thought }) }));
  if (settings.system) sent.unshift({ role: "system", content: settings.system });
  const message = { role: "assistant", content: "", model };
  conversation.messages.push(message);
  const mine = { abort: new AbortController(), message };
  running = mine;
  showRunning();
  drawChat();
  const began = performance.now();
  let first = 0, usage = null, finish = null, drawn = false;
  const draw = () => {
    drawn = false;
    // Asked for before the last piece came: the end has drawn everything.
    if (running !== mine || store.current !== conversation) return;
    const box = $("messages"), near = box.scrollHeight - box.scrollTop - box.clientHeight < 80;
    const element = box.children[conversation.messages.indexOf(message)];
    if (element) fill(element.querySelector(".body"), message, true);
    if (near) box.scrollTop = box.scrollHeight;
  };
  try {
    const body = { model, messages: sent, stream: true, stream_options: { include_usage: true }, ...sampling() };
    for await (const event of events(await call("/v1/chat/completions", body, mine.abort.signal))) {
      if (event.error) throw new ServerError(event.error.message);
      usage = event.usage || usage;
      const choice = event.choices[0];
      if (!choice) continue;
      finish = choice.finish_reason || finish;
      const { content, reasoning_content: thought } = choice.delta;
      if (content || thought) {
        first = first || performance.now();
        message.content += content || "";
        if (thought) message.thought = (message.thought || "") + thought;
        if (!drawn) { drawn = true; requestAnimationFrame(draw); }
      }
    }
  } catch (error) {
    if (error.name === "AbortError") finish = "stopped";
    else {
      message.failed = true;
      message.content += `${message.content ? "\n\n" : ""}${error.message}`;
    }
  }
  message.note = note(began, first, usage, finish);
  if (!message.content && !message.thought && finish === "stopped") {
    // Another answer may have taken its place already.
    conversation.messages = conversation.messages.filter((m) => m !== message);
  }
  if (running === mine) running = null;
  store.save(conversation);
  showRunning();
  if (store.current === conversation && !$("messages").querySelector(".edit")) drawChat();
}

function note(began, first, usage, finish) {
  const parts = [];
  if (usage) {
    const rate = usage.completion_tokens > 1 && first ? (usage.completion_tokens - 1) / ((performance.now() - first) / 1000) : 0;
    parts.push(`${usage.completion_tokens} tokens`);
    if (rate) parts.push(`${number(rate, 1)} tokens/s`);
  }
  if (first) parts.push(`first after ${seconds((first - began) / 1000)}`);
  if (finish === "length") parts.push("cut: no more tokens");
  if (finish === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

function showRunning() {
  $("send").hidden = Boolean(running);
  $("stop").hidden = !running;
}
