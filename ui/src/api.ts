// Requests to the server. All paths are relative to the page, so that it works behind a path prefix.

export interface Meta {
  name: string;
  namespace?: string;
  uid?: string;
  resourceVersion?: string;
  generation?: number;
  creationTimestamp?: string;
  deletionTimestamp?: string;
  deletionGracePeriodSeconds?: number;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
  ownerReferences?: { kind: string; name: string; uid: string; controller?: boolean }[];
}

export interface KubeObject {
  apiVersion?: string;
  kind?: string;
  metadata: Meta;
  // The fields of spec and status depend on the kind.
  spec?: any;
  status?: any;
  [field: string]: any;
}

export interface Session {
  user: string;
  groups?: string[];
  expires?: string;
  signOut: boolean;
}

// APIError is an error response. Its message is for the user.
export class APIError extends Error {
  constructor(readonly code: number, readonly reason: string, message: string) {
    super(message);
  }
}

// The secret of the session belongs to the tab. The server checks it, because a cookie reaches all ports of a host.
// It checks only that the header exists if the connection has credentials, as with kubectl proxy.
const secretKey = "berth-ui-secret";
const noSecret = "none";
const tabs = new BroadcastChannel("berth-ui");
tabs.onmessage = ({ data }) => {
  const secret = sessionStorage.getItem(secretKey);
  if (data === "request" && secret) tabs.postMessage({ secret });
};

// secretOfOtherTab requests a secret from the other tabs of the page, which share the cookie.
function secretOfOtherTab(): Promise<string | undefined> {
  return new Promise((done) => {
    const channel = new BroadcastChannel("berth-ui");
    const end = (secret?: string) => {
      clearTimeout(timer);
      channel.close();
      done(secret);
    };
    const timer = setTimeout(end, 300);
    channel.onmessage = ({ data }) => {
      if (data?.secret) end(data.secret);
    };
    channel.postMessage("request");
  });
}

// onSignedOut is called when the server no longer accepts the session.
let onSignedOut: (message: string) => void = () => {};
export function setSignedOutHandler(f: (message: string) => void) {
  onSignedOut = f;
}

async function failure(resp: Response): Promise<APIError> {
  let message = `${resp.status} ${resp.statusText}`;
  let reason = "";
  try {
    const text = await resp.text();
    try {
      const status = JSON.parse(text);
      message = status.message || message;
      reason = status.reason || "";
    } catch {
      message = text.trim().slice(0, 500) || message;
    }
  } catch {
    // The connection ended: the status line is all there is.
  }
  return new APIError(resp.status, reason, message);
}

async function send(path: string, init: RequestInit = {}): Promise<Response> {
  let resp: Response;
  try {
    const headers = { "X-Berth-UI": sessionStorage.getItem(secretKey) ?? noSecret, ...init.headers };
    resp = await fetch(path, { ...init, headers, credentials: "same-origin" });
  } catch (err) {
    if ((err as Error).name === "AbortError") throw err;
    throw new APIError(0, "Unreachable", "the server is unreachable");
  }
  if (resp.ok) return resp;
  throw await failure(resp);
}

// open requests a path of the Kubernetes API, such as /api/v1/nodes.
export async function open(path: string, init: RequestInit = {}): Promise<Response> {
  try {
    return await send("api" + path, init);
  } catch (err) {
    if (err instanceof APIError && err.code === 401) {
      sessionStorage.removeItem(secretKey);
      onSignedOut("Your session has expired. Sign in again.");
    }
    throw err;
  }
}

export async function get<T = any>(path: string, accept = "application/json"): Promise<T> {
  return (await open(path, { headers: { Accept: accept } })).json();
}

export async function write<T = any>(method: string, path: string, body: unknown, type = "application/json"): Promise<T> {
  const init: RequestInit = { method, headers: { "Content-Type": type } };
  if (body !== undefined) init.body = JSON.stringify(body);
  return (await open(path, init)).json();
}

export const mergePatch = "application/merge-patch+json";
export const strategicPatch = "application/strategic-merge-patch+json";
export const jsonPatch = "application/json-patch+json";

export async function getSession(): Promise<Session> {
  try {
    return await (await send("session")).json();
  } catch (err) {
    if ((err as APIError).code !== 401) throw err;
    sessionStorage.removeItem(secretKey);
    const secret = await secretOfOtherTab();
    if (!secret) throw err;
    sessionStorage.setItem(secretKey, secret);
    return (await send("session")).json();
  }
}

export async function signIn(credentials: { token?: string; code?: string }): Promise<Session> {
  const resp = await send("session", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(credentials),
  });
  const { secret, ...session } = await resp.json();
  sessionStorage.setItem(secretKey, secret);
  return session;
}

export async function signOut(): Promise<void> {
  await send("session", { method: "DELETE" });
  sessionStorage.removeItem(secretKey);
}

// Access is one question to the authorizer: may the user do this?
export interface Access {
  verb: string;
  group?: string;
  resource: string;
  subresource?: string;
  namespace?: string;
  name?: string;
}

const answers = new Map<string, Promise<boolean>>();

export function forgetAnswers() {
  answers.clear();
}

// allowed requests a SelfSubjectAccessReview. Its results are cached for a minute.
export function allowed(access: Access): Promise<boolean> {
  const key = JSON.stringify(access);
  let answer = answers.get(key);
  if (!answer) {
    answer = write("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {
      apiVersion: "authorization.k8s.io/v1", kind: "SelfSubjectAccessReview", spec: { resourceAttributes: access },
    }).then((r) => r.status.allowed === true, () => false);
    answers.set(key, answer);
    setTimeout(() => answers.delete(key), 60_000);
  }
  return answer;
}

// readLines calls onLine for each line of a response.
export async function readLines(resp: Response, onLine: (line: string) => void): Promise<void> {
  const reader = resp.body!.pipeThrough(new TextDecoderStream()).getReader();
  let parts: string[] = [];
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    let from = 0;
    for (let at = value.indexOf("\n"); at >= 0; at = value.indexOf("\n", from)) {
      parts.push(value.slice(from, at));
      onLine(parts.join(""));
      parts = [];
      from = at + 1;
    }
    if (from < value.length) parts.push(value.slice(from));
  }
  if (parts.length > 0) onLine(parts.join(""));
}
