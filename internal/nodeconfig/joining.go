package nodeconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// JoinSettings is how a node that has joined one finds it and lets it in.
type JoinSettings struct {
	Kubeconfig, BootstrapKubeconfig string // files; the agent writes the first by means of the second
	ClientCA                        string // file with the authority that signs those who may speak to the node
}

// AddServer writes into a configuration file how the node knows its server; what
// is in it stays, comments too. A file that is not there is made. It answers what
// the file says then: a configuration that says something else of authentication
// is left as it is, and names no authority of clients. The error leaves the file
// as it was.
func AddServer(file string, s JoinSettings) (*Config, error) {
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	made := addServer(string(text), s)
	c, _, err := Parse([]byte(made), &Flags{Config: file})
	if err != nil {
		return nil, err
	}
	if c.Kubeconfig != s.Kubeconfig || c.BootstrapKubeconfig != s.BootstrapKubeconfig {
		return nil, fmt.Errorf("%s: BerthConfiguration names another kubeconfig or bootstrapKubeconfig already: make them %s and %s, or take them out", file, s.Kubeconfig, s.BootstrapKubeconfig)
	}
	return c, replace(file, string(text), made)
}

// replace writes a file anew, whole or not at all.
func replace(file, text, made string) error {
	if made == text {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	mode := fs.FileMode(0o644)
	if st, err := os.Stat(file); err == nil {
		mode = st.Mode().Perm() // who hid it meant it
	}
	tmp := file + ".new"
	err := os.WriteFile(tmp, []byte(made), mode)
	if err == nil {
		err = os.Rename(tmp, file)
	}
	if err != nil {
		_ = os.Remove(tmp) // half of it, or not even that
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// newFile is the configuration of a node that has none.
const newFile = "apiVersion: " + KubeletAPIVersion + "\nkind: " + KubeletKind + "\n"

func addServer(text string, s JoinSettings) string {
	if strings.TrimSpace(text) == "" {
		text = newFile
	}
	if !hasField(text, "authentication") {
		text = addLines(text, KubeletAPIVersion, KubeletKind, "authentication:\n  x509:\n    clientCAFile: "+s.ClientCA+"\n")
	}
	// Without a certificate of the server's, it does not come in either.
	if !hasField(text, "serverTLSBootstrap") && !hasField(text, "tlsCertFile") {
		text = addLines(text, KubeletAPIVersion, KubeletKind, "serverTLSBootstrap: true\n")
	}
	if hasField(text, "kubeconfig") || hasField(text, "bootstrapKubeconfig") {
		return text // the caller says whether it is the same
	}
	return addLines(text, BerthAPIVersion, BerthKind, fmt.Sprintf("kubeconfig: %s\nbootstrapKubeconfig: %s\n", s.Kubeconfig, s.BootstrapKubeconfig))
}

// hasField tells whether a document has a field at its top.
func hasField(text, field string) bool { return strings.Contains("\n"+text, "\n"+field+":") }

// addLines puts lines into the document of a kind, which is made where there is
// none.
func addLines(text, version, kind, lines string) string {
	line := "kind: " + kind + "\n"
	if i := strings.Index("\n"+text, "\n"+line); i >= 0 {
		at := i + len(line)
		return text[:at] + lines + text[at:]
	}
	return strings.TrimRight(text, "\n") + "\n---\napiVersion: " + version + "\n" + line + lines
}
