// What objects say about themselves, in plain sentences.
import type { KubeObject } from "./api";
import { plain } from "./format";

export interface Trouble {
  reason: string;
  sentence: string;
  since?: string;
}

const slowStart = 30_000;
const slowReady = 15_000;

function condition(o: KubeObject, type: string) {
  return (o.status?.conditions ?? []).find((c: any) => c.type === type);
}

export { condition };

// trouble returns why a pod is not well, according to its status, or undefined.
export function trouble(pod: KubeObject, now = Date.now()): Trouble | undefined {
  const status = pod.status ?? {};
  const created = pod.metadata.creationTimestamp;
  if (pod.metadata.deletionTimestamp) {
    const late = now - Date.parse(pod.metadata.deletionTimestamp);
    if (late < slowStart) return undefined;
    return { reason: "Terminating", sentence: "The pod is still terminating after its grace period.",
      since: pod.metadata.deletionTimestamp };
  }
  if (status.phase === "Succeeded") return undefined;
  const scheduled = condition(pod, "PodScheduled");
  if (scheduled?.status === "False") {
    return { reason: scheduled.reason ?? "Unschedulable", since: scheduled.lastTransitionTime ?? created,
      sentence: sentence(`The pod is not scheduled: ${scheduled.message ?? "no reason given"}`) };
  }
  const containers = [...(status.initContainerStatuses ?? []), ...(status.containerStatuses ?? [])];
  for (const c of containers) {
    const found = containerTrouble(c, now, created);
    if (found) return found;
  }
  if (status.phase === "Failed") {
    return { reason: status.reason ?? "Failed", since: ended(containers) ?? created,
      sentence: sentence(`The pod has failed${status.message ? ": " + status.message : ""}`) };
  }
  const ready = condition(pod, "Ready");
  if (status.phase === "Running" && ready?.status === "False" && now - Date.parse(ready.lastTransitionTime) > slowReady) {
    const names = (status.containerStatuses ?? []).filter((c: any) => !c.ready).map((c: any) => c.name);
    return { reason: ready.reason ?? "NotReady", since: ready.lastTransitionTime,
      sentence: names.length ? `Not ready: container ${names.join(", ")}.` : sentence(ready.message ?? "The pod is not ready") };
  }
  if (status.phase === "Pending" && created && now - Date.parse(created) > slowStart) {
    return { reason: "Starting", sentence: "The pod is still starting.", since: created };
  }
  return undefined;
}

function ended(containers: any[]): string | undefined {
  return containers.map((c) => c.state?.terminated?.finishedAt).filter(Boolean).sort().pop();
}

function containerTrouble(c: any, now: number, created?: string): Trouble | undefined {
  const waiting = c.state?.waiting;
  const last = c.lastState?.terminated;
  if (waiting && !["ContainerCreating", "PodInitializing"].includes(waiting.reason)) {
    let text = `Container ${c.name}: ${waiting.reason}`;
    if (last) text += `. It ended with ${exit(last)}, restarts: ${c.restartCount}`;
    else if (waiting.message) text += `: ${waiting.message}`;
    return { reason: waiting.reason ?? "Waiting", sentence: sentence(text), since: last?.finishedAt ?? created };
  }
  const terminated = c.state?.terminated;
  if (terminated && terminated.exitCode !== 0) {
    return { reason: terminated.reason ?? "Error", since: terminated.finishedAt,
      sentence: sentence(`Container ${c.name} ended with ${exit(terminated)}`) };
  }
  if (c.state?.running && last && last.exitCode !== 0 && now - Date.parse(c.state.running.startedAt) < slowStart) {
    return { reason: "Restarted", since: last.finishedAt,
      sentence: sentence(`Container ${c.name} has restarted after ${exit(last)}, restarts: ${c.restartCount}`) };
  }
  return undefined;
}

// exit describes how a container ended.
export function exit(t: any): string {
  const code = t.signal ? `signal ${t.signal}` : `exit code ${t.exitCode}`;
  const reason = t.reason && t.reason !== "Error" && t.reason !== "Completed" ? ` (${t.reason})` : "";
  return code + reason + (t.message ? `: ${t.message.trim()}` : "");
}

export function sentence(text: string): string {
  const clean = plain(text).trim();
  return /[.!?]$/.test(clean) ? clean : clean + ".";
}

// explanation makes one sentence of the answer of an agent. The page shows the names of the container and the pod
// already.
export function explanation(why: any): string {
  const summary = String(why.summary ?? "").replace(/ restarting failed container=\S+ pod=\S+\)/, "");
  const code = (why.waitingFor ?? []).flatMap((w: any) => w.details ?? []).find((d: any) => d.name === "last exit code");
  return sentence(summary) + (code ? ` Its last exit code is ${plain(String(code.value))}.` : "");
}

// owner returns the kind and name of the controller of an object.
export function owner(o: KubeObject) {
  return o.metadata.ownerReferences?.find((r) => r.controller);
}

// requested returns the requests of a pod for a resource: those of its containers, or of one init container if larger.
export function requested(pod: KubeObject, resource: string, parse: (q?: string) => number): number {
  const of = (c: any) => parse(c.resources?.requests?.[resource]);
  const init = pod.spec?.initContainers ?? [];
  const sidecars = init.filter((c: any) => c.restartPolicy === "Always");
  const sum = [...(pod.spec?.containers ?? []), ...sidecars].reduce((n: number, c: any) => n + of(c), 0);
  const largest = Math.max(0, ...init.filter((c: any) => c.restartPolicy !== "Always").map(of));
  return Math.max(sum, largest) + parse(pod.spec?.overhead?.[resource]);
}

export function active(pod: KubeObject): boolean {
  return pod.status?.phase !== "Succeeded" && pod.status?.phase !== "Failed";
}

// rollout describes how far a workload is.
export function rollout(o: KubeObject): { ready: number; want: number; text: string; done: boolean } {
  const s = o.status ?? {};
  if (o.kind === "DaemonSet") {
    const want = s.desiredNumberScheduled ?? 0;
    const ready = s.numberReady ?? 0;
    const updated = s.updatedNumberScheduled ?? 0;
    const done = s.observedGeneration >= (o.metadata.generation ?? 0) && updated >= want && (s.numberAvailable ?? 0) >= want;
    return { ready, want, done, text: done ? "complete" : `${updated} of ${want} updated, ${ready} ready` };
  }
  const want = o.spec?.replicas ?? 1;
  const ready = s.readyReplicas ?? 0;
  const updated = s.updatedReplicas ?? 0;
  const available = s.availableReplicas ?? ready;
  const seen = (s.observedGeneration ?? 0) >= (o.metadata.generation ?? 0);
  const old = (s.replicas ?? 0) - updated;
  const stuck = condition(o, "Progressing");
  const done = seen && updated >= want && old <= 0 && available >= want && (s.replicas ?? 0) === want;
  let text = done ? "complete" : `${updated} of ${want} updated, ${available} available`;
  if (!done && old > 0) text += `, ${old} old`;
  if (!done && o.spec?.paused) text += ", paused";
  if (stuck?.reason === "ProgressDeadlineExceeded") text += ", progress deadline exceeded";
  return { ready, want, text, done };
}

export interface WorkloadKind {
  kind: string;
  resource: string;
  short: string;
}

export const workloadKinds: WorkloadKind[] = [
  { kind: "Deployment", resource: "deployments", short: "deployment" },
  { kind: "StatefulSet", resource: "statefulsets", short: "statefulset" },
  { kind: "DaemonSet", resource: "daemonsets", short: "daemonset" },
];

export function objectPath(prefix: string, resource: string, namespace?: string, name?: string): string {
  const parts = [prefix];
  if (namespace) parts.push("namespaces", encodeURIComponent(namespace));
  parts.push(resource);
  if (name) parts.push(encodeURIComponent(name));
  return parts.join("/");
}

export function selectorText(selector: any): string {
  const labels = Object.entries(selector?.matchLabels ?? selector ?? {}).map(([k, v]) => `${k}=${v}`);
  const more = (selector?.matchExpressions ?? []).map((e: any) =>
    e.operator === "Exists" ? e.key : e.operator === "DoesNotExist" ? "!" + e.key
      : `${e.key} ${e.operator === "In" ? "in" : "notin"} (${(e.values ?? []).join(",")})`);
  return [...labels, ...more].join(",");
}
