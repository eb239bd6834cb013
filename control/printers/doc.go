// Package printers prints objects as tables for kubectl: one row per object with the columns of
// upstream. Columns for "-o wide" have priority 1.
//
// The package is pure and has no state: cells depend on the object and the current time only.
package printers
