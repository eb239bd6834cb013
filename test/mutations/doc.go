// Package mutations compares how two API servers judge seeded mutations of objects: the verdict, the causes of a
// rejection (field and reason), and the object that is stored. The oracle is kube-apiserver.
//
// The mutations start from the valid objects in bases. A generator walks the Go type of an object and removes, replaces
// or adds one or two fields. The requests are dry runs, so that all requests can run in parallel and an object is
// always mutated from the same state.
//
// make mutations (test/conformance) compares kube-apiserver and berth-control, and records the answers of
// kube-apiserver. The recorded answers are in testdata; test/control compares berth-control with them.
package mutations
