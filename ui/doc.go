// Package ui contains the built assets of the web page. `make ui` builds them from the sources in this directory.
package ui
