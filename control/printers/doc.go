// Package printers shows objects as kubectl users know them: one row of cells
// per object, under the headings that they are used to, those of "-o wide"
// with a priority of 1.
//
// It owns no state and is pure: the same object at the same moment is always
// the same row. It never reads a store; a cell comes from the object alone.
package printers
