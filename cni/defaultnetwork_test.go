package cni

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func TestWriteDefault(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "not", "yet")
	file := filepath.Join(dir, defaultFile)
	stat := func() os.FileInfo {
		t.Helper()
		st, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	if err := WriteDefault(dir, []string{realPlugins}, prefixes("10.1.0.0/24"), true); err != nil {
		t.Fatal(err)
	}
	before := stat()
	if err := os.Chmod(file, 0o644); err != nil { // as earlier releases did
		t.Fatal(err)
	}
	if n, err := load(dir); err != nil || n.name != "berth" || n.version != "1.0.0" || before.Mode() != confMode {
		t.Errorf("%+v, %v, %v", n, err, before.Mode())
	}
	if err := WriteDefault(dir, []string{realPlugins}, prefixes("10.1.0.0/24"), true); err != nil ||
		!os.SameFile(before, stat()) || stat().Mode() != confMode {
		t.Errorf("identical content was written, or has mode %v: %v", stat().Mode(), err)
	}
	if err := WriteDefault(dir, []string{realPlugins}, prefixes("10.2.0.0/24", "fd00:2::/64"), true); err != nil ||
		os.SameFile(before, stat()) { // N1
		t.Errorf("new content was not put in place by rename: %v", err)
	}
	text, _ := os.ReadFile(file)
	for _, want := range []string{`"10.2.0.0/24"`, `"fd00:2::/64"`, `"0.0.0.0/0"`, `"::/0"`, `"cni0"`, `"bandwidth"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("missing %s in\n%s", want, text)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("%v", entries)
	}
}

func TestForeignFilesStay(t *testing.T) { // N2
	t.Parallel()
	for _, row := range []struct{ name, file, text, bad string }{
		{"one that sorts first counts", "05-other.conflist", good, ""},
		{"one that sorts first counts even if it is bad", "05-other.conf", "x", ""},
		{"one of our name that is not ours", defaultFile, good, "was not written by berth"},
		{"one of our name that is no JSON", defaultFile, "x", "was not written by berth"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			dir := confDir(t, row.file, row.text)
			err := WriteDefault(dir, []string{realPlugins}, prefixes("10.1.0.0/24"), true)
			if (err == nil) != (row.bad == "") || err != nil && !strings.Contains(err.Error(), row.bad) {
				t.Errorf("got %v", err)
			}
			text, _ := os.ReadFile(filepath.Join(dir, row.file))
			if entries, _ := os.ReadDir(dir); string(text) != row.text || len(entries) != 1 {
				t.Errorf("%q, %v", text, entries)
			}
		})
	}
	dir := confDir(t, "99-other.conflist", good)
	if err := WriteDefault(dir, []string{realPlugins}, prefixes("10.1.0.0/24"), true); err != nil {
		t.Fatal(err)
	}
	if n, err := load(dir); err != nil || n.name != "berth" {
		t.Errorf("ours sorts first: %+v, %v", n, err)
	}
}

func TestBadRanges(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		cidrs []netip.Prefix
		want  string
	}{
		{"none", nil, "cniPodCIDRs: must not be empty"},
		{"the zero value", []netip.Prefix{{}}, "cniPodCIDRs[0]: not an address range"},
		{"an address in a range", prefixes("10.0.0.1/24"),
			"cniPodCIDRs[0]: 10.0.0.1/24 has host bits set; use 10.0.0.0/24"},
		{"too small for a pod", prefixes("10.0.0.0/24", "fd00::/127"),
			"cniPodCIDRs[1]: fd00::/127: the prefix must have 8 to 126 bits"},
		{"everything", prefixes("0.0.0.0/0"), "cniPodCIDRs[0]: 0.0.0.0/0: the prefix must have 8 to 30 bits"},
		{"loopback", prefixes("127.0.0.0/24"), "cniPodCIDRs[0]: 127.0.0.0/24 is not usable for hosts"},
		{"two of a family", prefixes("10.0.0.0/24", "10.1.0.0/24"),
			"cniPodCIDRs: at most one IPv4 and one IPv6 range is allowed"},
	} {
		dir := t.TempDir()
		if err := WriteDefault(dir, nil, row.cidrs, true); err == nil || err.Error() != row.want {
			t.Errorf("%s: %v", row.name, err)
		}
		if entries, _ := os.ReadDir(dir); len(entries) > 0 {
			t.Errorf("%s: wrote %v", row.name, entries)
		}
	}
}
