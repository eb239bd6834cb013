// Package apiserver tells the server what this node's pods are doing: their status,
// their events, mirror pods for those that come from files, and, when nothing is
// left of a pod whose deletion waits for that, that its object may go.
//
// It owns what the server was last told of each pod and what it has to be told
// next. It reads nothing from the server: what the server has is heard from the
// source that watches it. It never decides anything about a pod.
//
//	board ──► want ──differs from what the server has──► patch ──► told
//	              └──the pod is gone, its object waits──► last patch ──► delete
//
// Invariants, each held by a test:
//
//	P1 Putting never waits for the server: of several changes of a pod that come
//	   while one is on its way, the newest is told.
//	P2 A patch says only what is this node's to say: conditions of others stay,
//	   and nothing is read first.
//	P3 A patch and a deletion name the UID: a pod of the same name that is another
//	   is left alone.
//	P4 An object is deleted only when its last status has been told and nothing of
//	   the pod is left.
//	P5 What others have written over this node's words is written again.
//	P6 What the server does not take now is told again; what it will never take is
//	   said once, in the log.
//	P7 What a pod says on its way up, before anything of it has started, is told
//	   only when that takes long; that it runs is told at once.
//	P8 An object is there for as long as the source shows it: that it is not, or is
//	   another, is tried again until then as what else is refused. One that the
//	   source has never shown is believed to be gone, until it shows it.
//
// Goroutines: Run, which begins requests and waits for them all, a few at once.
package apiserver
