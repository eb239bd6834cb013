package criconfig

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"berth/agent/plan"
)

// TestParseEnvFile checks the rules of the page "Define Environment Variable Values Using An
// Init Container" of the Kubernetes documentation.
func TestParseEnvFile(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, content string
		want          map[string]string
		err           string
	}{
		{"a value is in single quotes", "MY_VAR='my-literal-value'\n", map[string]string{"MY_VAR": "my-literal-value"},
			""},
		{"blank lines and comments are ignored", "# comment\n\n  \t\n   # DB=x\nDB_ADDRESS='address'",
			map[string]string{"DB_ADDRESS": "address"}, ""},
		{"newlines inside the quotes are preserved", "MULTI='line1\n  line2\n'\nB='2'\n",
			map[string]string{"MULTI": "line1\n  line2\n", "B": "2"}, ""},
		{"leading spaces and those around = are ignored", "  A  =  '1'  \n\tB='2'\r\n",
			map[string]string{"A": "1", "B": "2"}, ""},
		{"the value is literal", `A='\n $B ${C} $(D) "x" a=b # no comment'`,
			map[string]string{"A": `\n $B ${C} $(D) "x" a=b # no comment`}, ""},
		{"an empty value is a value", "A=''", map[string]string{"A": ""}, ""},
		{"the last definition wins", "A='1'\nA='2'", map[string]string{"A": "2"}, ""},
		{"an empty file has no variables", "", map[string]string{}, ""},
		{"without quotes", "A='1'\nB=value", nil, "at line 2: the value is not in single quotes"},
		{"with double quotes", `A="value"`, nil, "at line 1: the value is not in single quotes"},
		{"with nothing", "A=\n", nil, "at line 1: the value is not in single quotes"},
		{"two strings in a row", "A='val1''val2'", nil, "at line 1: something follows the closing quote"},
		{"something after several lines", "A='1\n2\n3'$B", nil, "at line 3: something follows the closing quote"},
		{"a comment after the value", "A='1' # one", nil, "at line 1: something follows the closing quote"},
		{"unclosed quotes", "# a\nA='1\n2\n", nil, "at line 2: the single quotes are not closed"},
		{"no name", "='1'", nil, "at line 1: want VAR='value'"},
		{"no =", "A='1\n2'\n\nexport\n", nil, "at line 4: want VAR='value'"},
	} {
		got, err := parseEnvFile(row.content)
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s: %s", row.name, diff)
		}
		if row.err == "" && err != nil || row.err != "" && (err == nil || !strings.HasSuffix(err.Error(), row.err)) {
			t.Errorf("%s: error %v, want %q", row.name, err, row.err)
		}
	}
}

func TestFileKeyRef(t *testing.T) {
	t.Parallel()
	files := plan.EnvFiles{
		{Volume: "v", Path: "good.env"}: {Content: "A='1'\nEMPTY=''\nSECRET='do-not-tell'"},
		{Volume: "v", Path: "bad.env"}:  {Content: "A='1'\nSECRET=do-not-tell"},
		{Volume: "v", Path: "gone.env"}: {Missing: true},
		{Volume: "v", Path: "no.env"}:   {Err: "not a regular file"},
	}
	for _, row := range []struct {
		path, key string
		optional  bool
		value     string
		ok        bool
		err       string
	}{
		{"good.env", "A", false, "1", true, ""},
		{"good.env", "EMPTY", false, "", true, ""},
		{"good.env", "B", false, "", false,
			`env "X": environment variable key "B" not found in file "good.env" of volume "v"`},
		{"good.env", "B", true, "", false, ""},
		{"gone.env", "A", false, "", false, `file "gone.env" of volume "v" not found`},
		{"gone.env", "A", true, "", false, ""},
		{"bad.env", "A", true, "", false, "invalid environment variable format at line 2"},
		{"no.env", "A", true, "", false, "not a regular file"},
	} {
		ref := &corev1.FileKeySelector{VolumeName: "v", Path: row.path, Key: row.key, Optional: &row.optional}
		value, ok, err := fileKey("X", ref, files)
		if value != row.value || ok != row.ok || (err != nil) != (row.err != "") || err != nil &&
			!strings.Contains(err.Error(), row.err) {
			t.Errorf("%+v: %q %v %v", row, value, ok, err)
		}
		if err != nil && (plan.KindOf(err) != plan.Other || strings.Contains(err.Error(), "do-not-tell")) {
			t.Errorf("%+v: a permanent error, or one that contains a value: %v", row, err)
		}
	}
}
