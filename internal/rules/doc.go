// Package rules is the common part of the packages that set defaults of API objects and validate them
// (control/validation, workloads/validation): the functions of a kind, and a collector of errors with the
// checks that several kinds need.
//
// It links only the core API group, so that a program with the rules of some groups does not link the
// types of the others.
//
// The package is pure. Validators are not safe for concurrent use.
package rules
