package ui

import "embed"

// Files contains the compressed files of the page in the directory dist.
//
//go:embed dist/*.gz
var Files embed.FS
