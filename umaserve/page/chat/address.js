// The address of what is shown: `#/c/ID` for a conversation, `#chat` for one that has yet to begin.

/** Shows what the address names, also when one goes back; what is opened meanwhile becomes the address, until `signal`. */
export async function followAddress(app, store, actions, signal) {
  const { state } = store;
  let [shown, named] = [null, ""];
  /** The server may have it, once it is asked with a key. */
  let missed = "";

  async function go() {
    const id = /^#\/c\/([\w-]+)$/.exec(location.hash)?.[1];
    if (id === undefined) {
      if (addressOf(state.conversation) !== NEW) actions.begin();
    } else if (id !== state.conversation.id && !(await actions.open(id))) {
      missed = id;
      actions.begin();
    }
  }

  addEventListener("popstate", go, { signal });
  addEventListener("newkey", () => missed && actions.open(missed), { signal });
  await go();
  if (signal.aborted) return;
  store.subscribe(() => {
    const { conversation } = state;
    const address = addressOf(conversation);
    if (address === named) return;
    // With its first question a new conversation is still the one that was shown.
    app.place(address, named === "" || conversation === shown);
    [shown, named] = [conversation, address];
  });
}

const NEW = "/#chat";

function addressOf({ id, turns }) {
  return Object.keys(turns).length > 0 ? `/#/c/${id}` : NEW;
}
