// Package ui contains the built assets of the web page. `make ui` builds them from the sources in this directory.
package ui

import "embed"

// Files contains the compressed files of the page in the directory dist.
//
//go:embed dist/*.gz
var Files embed.FS
