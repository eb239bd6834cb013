// Package addresses turns the groups of package selection into the objects that a control server
// publishes, and back. A control server runs a selection.Index and a Publisher. A node runs a Receiver,
// and needs policies and these objects, but neither pods nor namespaces.
//
// The package is pure. Its types are not safe for concurrent use.
//
// Invariants:
//
//	A1 The objects of a group have each of its members once.
//	A2 An object has at most SliceSize members. A member stays in its object.
//	A3 When a node has slice 0 of a group, it has all members that the group had when it was created.
//	A4 A Receiver that has received all changes has the members of the Index, also after it has
//	   received a complete list instead of some changes.
package addresses
