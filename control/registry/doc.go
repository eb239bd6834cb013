// Package registry is the table of what the control server keeps: one row per
// kind (table*.go), and the store made from a row (store.go, strategy.go,
// status.go, scale.go).
//
// A row says how a kind is called, what it defaults to, what is refused, what
// users see of it and how it is kept. Rows name functions of control/validation and
// control/printers; the kinds that need more than a row (pods) have a package of
// their own, which begins from NewStore.
//
// This package starts no goroutine of its own and keeps no state.
package registry
