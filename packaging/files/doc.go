// Package files writes the files of a package that only the program itself can generate: its manual
// pages, its shell completion and the default configuration. It is linked only with the build tag
// "packaging", in programs that run once during the build and are not shipped.
package files
