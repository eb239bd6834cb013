package main

import (
	"bytes"
	"testing"

	"berth/agent/source"
	"berth/cli"
	"berth/internal/strictyaml"
)

func TestManifestErrorsAreInManifestOrder(t *testing.T) {
	t.Parallel()
	var got bytes.Buffer
	cli.PrintError(
		&got,
		source.APIError(
			strictyaml.Errors{
				{Line: 9, Field: "c", Message: "x"},
				{Line: 3, Field: "a", Message: "y"},
				{Line: 9, Field: "b", Message: "z"},
			},
		),
	)
	if want := "Error from agent (BadRequest): the manifest has 3 errors\n  line 3: a: y\n  line 9: c: x\n  line " +
		"9: b: z\n"; got.String() != want {
		t.Errorf("got %q, want %q", got.String(), want)
	}
}
