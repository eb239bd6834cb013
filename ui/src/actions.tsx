// Changes that users make. Each shows the equivalent kubectl command and requires a confirmation.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Access } from "./api";
import { plain } from "./format";
import { useAllowed } from "./components";

export interface Action {
  label: string;
  access: Access;
  command: string;
  // run makes the change and returns what it did.
  run: () => Promise<unknown>;
  form?: ComponentChildren;
  danger?: boolean;
  disabled?: boolean;
}

// quote makes a text one word of a shell.
export function quote(text: string): string {
  return /^[A-Za-z0-9_.\/:=@-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

// ActionButton is not shown if the user may not do it.
export function ActionButton({ action }: { action: Action }) {
  const may = useAllowed(action.access);
  const [open, setOpen] = useState(false);
  const [state, setState] = useState<{ busy?: boolean; error?: string; done?: boolean }>({});
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (open) dialog.current?.showModal();
  }, [open]);
  if (!may) return null;
  const close = () => { setOpen(false); setState({}); };
  const run = async () => {
    setState({ busy: true });
    try {
      await action.run();
      close();
    } catch (err) {
      setState({ error: plain((err as Error).message) });
    }
  };
  return (
    <>
      <button disabled={action.disabled} class={action.danger ? "danger" : ""} onClick={() => setOpen(true)}>{action.label}</button>
      {open && (
        <dialog ref={dialog} onClose={close} aria-label={action.label}>
          <form onSubmit={(e) => { e.preventDefault(); void run(); }}>
            <h2>{action.label}</h2>
            {action.form}
            <p>Equivalent kubectl command:</p>
            <pre class="command">{action.command}</pre>
            {state.error && <p class="error" role="alert">{state.error}</p>}
            <div class="buttons">
              <button type="submit" class={action.danger ? "danger" : "primary"} disabled={state.busy}>{action.label}</button>
              <button type="button" onClick={() => dialog.current?.close()}>Cancel</button>
            </div>
          </form>
        </dialog>
      )}
    </>
  );
}
