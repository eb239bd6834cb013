// Package keylock has locks by key, whose waiting ends with a context.
package keylock
