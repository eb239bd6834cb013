package cis

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestCatalogHasEveryControlOnce compares the number of controls by section with the benchmark.
func TestCatalogHasEveryControlOnce(t *testing.T) {
	t.Parallel()
	want := map[string]int{"1.1": 21, "1.2": 30, "1.3": 7, "1.4": 2, "2": 7, "3.1": 3, "3.2": 2, "4.1": 10, "4.2": 14,
		"4.3": 1, "5.1": 13, "5.2": 12, "5.3": 2, "5.4": 2, "5.5": 1, "5.6": 4}
	got, ids := map[string]int{}, map[string]bool{}
	for _, c := range Controls("1", "2", "3", "4", "5") {
		got[c.Section()]++
		if ids[c.ID] {
			t.Errorf("%s is duplicated", c.ID)
		}
		ids[c.ID] = true
		if c.Title == "" || c.Assessment != automated && c.Assessment != manual {
			t.Errorf("got %+v", c)
		}
	}
	for section, n := range want {
		if got[section] != n || sectionTitles[section] == "" {
			t.Errorf("section %s: got %d controls, want %d, title %q", section, got[section], n, sectionTitles[section])
		}
	}
	if len(got) != len(want) || len(ids) != len(catalog) {
		t.Errorf("got sections %v and %d of %d controls", got, len(ids), len(catalog))
	}
}

func TestReportOutput(t *testing.T) {
	t.Parallel()
	finding := Passed("fine\n\x1b[31m")
	r := Check([]Control{{ID: "1.1.1", Title: "a"}, {ID: "1.2.10", Title: "longer"}, {ID: "2.1", Title: "b"},
		{ID: "2.2", Title: "c"}},
		map[string]func(int) Finding{
			"1.1.1":  func(int) Finding { return finding },
			"1.2.10": func(int) Finding { return Failed("fix it", "bad") },
			"2.2":    func(int) Finding { return ToReview("the users", "found %d", 3) },
		}, 0)
	var b strings.Builder
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	want := Benchmark + `

1.1 Control Plane Node Configuration Files
ID       VERDICT      TITLE    EVIDENCE
1.1.1    PASS         a        fine  [31m

1.2 API Server
ID       VERDICT      TITLE    EVIDENCE
1.2.10   FAIL         longer   bad
                      remedy: fix it

2 Etcd Node Configuration
ID       VERDICT      TITLE    EVIDENCE
2.1      NOTCHECKED   b        no check for this control
2.2      MANUAL       c        found 3
                      review: the users

4 controls: 1 passed, 1 failed, 0 accepted, 0 not applicable, 1 to review manually, 1 not checked
`
	if b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
	for _, c := range []struct {
		summary map[Verdict]int
		want    int
	}{
		{map[Verdict]int{Pass: 1, Accepted: 1, NotApplicable: 1, Manual: 1}, 0},
		{map[Verdict]int{Fail: 1, NotChecked: 1}, 1},
		{map[Verdict]int{Pass: 1, NotChecked: 1}, 2},
	} {
		if got := (Report{Summary: c.summary}).ExitCode(); got != c.want {
			t.Errorf("%v: got exit code %d, want %d", c.summary, got, c.want)
		}
	}
}

func TestListCountsFurtherNames(t *testing.T) {
	t.Parallel()
	if got := List([]string{"c", "a", "b", "a"}); got != "a, b, c" {
		t.Errorf("got %q", got)
	}
	if got := List([]string{"7", "6", "5", "4", "3", "2", "1"}); got != "1, 2, 3, 4, 5 and 2 more" {
		t.Errorf("got %q", got)
	}
}

// TestFilesOfRealDirectory checks files with wrong modes.
func TestFilesOfRealDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"good": 0o600, "open": 0o640, "sub/deep": 0o666} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil { // regardless of the umask
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/nonexistent", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	files, err := Tree(dir)
	if err != nil {
		t.Fatal(err)
	}
	var regular []File
	for _, f := range files {
		if !f.Dir {
			regular = append(regular, f)
		}
		if f.UID != uint32(os.Getuid()) {
			t.Errorf("%s: got owner %s", f.Path, f.Owner())
		}
	}
	found := CheckModes(regular, 0o600)
	if len(files) != 5 || found.Verdict != Fail ||
		found.Evidence != dir+"/open has mode 0640, "+dir+"/sub/deep has mode 0666" ||
		found.Remedy != "chmod 600 "+dir+"/open, chmod 600 "+dir+"/sub/deep" {
		t.Errorf("got %d files, %+v", len(files), found)
	}
	if found := CheckModes(regular, 0o666); found.Verdict != Pass {
		t.Errorf("got %+v", found)
	}
	missing := Stat(filepath.Join(dir, "none"))
	if found := CheckModes([]File{missing}, 0o600); !missing.Missing() || found.Verdict != NotApplicable {
		t.Errorf("got %+v", found)
	}
	unreadable := File{Path: "/x", Err: os.ErrPermission}
	if found := CheckOwners([]File{unreadable}, 0); found.Verdict != NotChecked {
		t.Errorf("got %+v", found)
	}
	if _, err := Tree(filepath.Join(dir, "none")); err == nil {
		t.Error("a missing directory is not an error")
	}
}

func TestCheckOwners(t *testing.T) {
	t.Parallel()
	root, jane, group := File{Path: "/a"}, File{Path: "/b", UID: 7, GID: 7}, File{Path: "/c", GID: 7}
	for name, c := range map[string]struct {
		files []File
		user  uint32
		want  Verdict
	}{
		"root":                         {[]File{root}, 0, Pass},
		"another user":                 {[]File{root, jane}, 0, Fail},
		"another group":                {[]File{group}, 0, Fail},
		"the user of the program":      {[]File{jane}, 7, Accepted},
		"root instead of that user":    {[]File{root}, 7, Pass},
		"a user beside that user":      {[]File{jane, {Path: "/e", UID: 8}}, 7, Fail},
		"a missing file":               {[]File{{Path: "/d", Err: os.ErrNotExist}}, 0, NotApplicable},
		"units that all users read":    {nil, 0, NotApplicable},
		"a missing one beside another": {[]File{root, {Path: "/d", Err: os.ErrNotExist}}, 0, Pass},
	} {
		if got := CheckOwners(c.files, c.user); got.Verdict != c.want {
			t.Errorf("%s: got %+v, want %s", name, got, c.want)
		}
	}
	if got := UnitModes([]File{{Path: "/u", Mode: 0o644}}); got.Verdict != Accepted {
		t.Errorf("got %+v", got)
	}
	if got := UnitModes([]File{{Path: "/u", Mode: 0o664}}); got.Verdict != Fail {
		t.Errorf("got %+v", got)
	}
	if !slices.Contains(Verdicts(), Accepted) {
		t.Error("the summary lacks a verdict")
	}
}
