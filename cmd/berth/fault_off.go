//go:build !crashpoints

package main

// fault is told of every action before and after it; only builds for the crash
// tests have one.
var fault func(point string)
