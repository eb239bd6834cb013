package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const report = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="s">
  <testcase name="[SynchronizedBeforeSuite]" status="passed" time="0.1"></testcase>
  <testcase name="[It] [sig-node] Pods a [Conformance]" status="passed" time="2.5"></testcase>
  <testcase name="[It] [sig-storage] Secrets b [Conformance]" status="failed" time="1"><failure type="failed">want x
got y</failure></testcase>
  <testcase name="[It] [sig-node] Pods c [Conformance]" status="skipped" time="0"></testcase>
</testsuite></testsuites>`

func TestReadReports(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "junit_01.xml")
	if err := os.WriteFile(file, []byte(report), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := readReport(file)
	if err != nil || len(all) != 2 || all.passed() || !all[:1].passed() {
		t.Fatalf("%v, %+v", err, all)
	}
	var out strings.Builder
	all.print(&out, "stock")
	want := fmt.Sprintf("stock    %-22s   1 of   1 passed,     2 s\nstock    %-22s   0 of   1 passed,     1 s\n",
		"[sig-node]", "[sig-storage]") +
		"failed: [sig-storage] Secrets b [Conformance]\n  want x\n  got y\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	if err := os.WriteFile(file, []byte("<testsuites>"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readReport(file); err == nil || !strings.Contains(err.Error(), "junit_01.xml") {
		t.Errorf("truncated report: got %v, want an error that names the file", err)
	}
}
