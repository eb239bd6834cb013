package checkpoint

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckFile(t *testing.T) { // C3
	t.Parallel()
	content := filled(t)
	page := os.Getpagesize()
	edited := func(edit func(b []byte)) []byte {
		b := bytes.Clone(content)
		edit(b)
		return b
	}
	for _, tt := range []struct {
		name, kind string
		content    []byte
	}{
		{"a sound store", "", content},
		{"a text file", "alien", bytes.Repeat([]byte("hello"), 10000)},
		{"a short text file", "alien", []byte("hello")},
		{"all pages but the first two are zero", "damaged", edited(func(b []byte) { clear(b[2*page:]) })},
		{"all pages but the first two are missing", "damaged", content[:2*page]},
		{"every page has a wrong page ID", "damaged", edited(func(b []byte) {
			for at := 2 * page; at+page <= len(b); at += page {
				b[at] ^= 0x55
			}
		})},
		{"both meta pages have wrong checksums", "damaged", edited(func(b []byte) {
			b[16+20] ^= 1
			b[page+16+20] ^= 1
		})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "berth.db")
			if err := os.WriteFile(path, tt.content, 0o600); err != nil {
				t.Fatal(err)
			}
			err := checkFile(path, slog.New(slog.DiscardHandler))
			unusable, _ := errors.AsType[*unusableError](err)
			switch {
			case tt.kind == "" && err != nil:
				t.Errorf("unexpected error: %v", err)
			case tt.kind != "" && (unusable == nil || unusable.kind != tt.kind):
				t.Errorf("got %v, want a file that is %s", err, tt.kind)
			case err != nil && strings.Contains(err.Error(), "panic"):
				t.Errorf("the reason reads like a crash of the agent: %v", err)
			default:
				t.Log(err)
			}
		})
	}
}

func TestCheckFileThatCannotBeRead(t *testing.T) {
	t.Parallel()
	if err := checkFile(filepath.Join(t.TempDir(), "none"), slog.New(slog.DiscardHandler)); err != nil {
		t.Errorf("unexpected error: %v", err)
	}
}
