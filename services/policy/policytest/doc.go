// Package policytest helps to test network policy enforcement. Allowed answers directly from the API
// objects whether a pod may reach another. World is a seeded cluster that changes. Evaluate runs a
// packet through a ruleset.
//
// It shares no code with the packages that it helps to test, apart from the types of a ruleset.
package policytest
