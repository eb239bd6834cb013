package nodeconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// JoinSettings are the settings that a node needs to join a server.
type JoinSettings struct {
	Kubeconfig, BootstrapKubeconfig string // files; the agent writes the first one with the second one
	ClientCA                        string // file with the certificate authority of clients of the kubelet API
}

// AddServer adds the settings to a configuration file, and keeps its other content, including
// comments. A missing file is created. It returns the resulting configuration. Existing
// authentication settings are left as they are, and may not include the certificate authority of
// clients. An error leaves the file unchanged.
func AddServer(file string, s JoinSettings) (*Config, error) {
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	updated := addServer(string(text), s)
	c, _, err := Parse([]byte(updated), &Flags{Config: file})
	if err != nil {
		return nil, err
	}
	if c.Kubeconfig != s.Kubeconfig || c.BootstrapKubeconfig != s.BootstrapKubeconfig {
		return nil, fmt.Errorf(
			"%s: BerthConfiguration has another kubeconfig or bootstrapKubeconfig: set them to %s and %s, or "+
				"remove them",
			file,
			s.Kubeconfig,
			s.BootstrapKubeconfig,
		)
	}
	return c, replace(file, string(text), updated)
}

// replace writes a file atomically.
func replace(file, text, updated string) error {
	if updated == text {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	mode := fs.FileMode(0o644)
	if st, err := os.Stat(file); err == nil {
		mode = st.Mode().Perm() // keep the permissions
	}
	tmp := file + ".new"
	err := os.WriteFile(tmp, []byte(updated), mode)
	if err == nil {
		err = os.Rename(tmp, file)
	}
	if err != nil {
		_ = os.Remove(tmp) // possibly incomplete
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// newFile is the initial content of a configuration file.
const newFile = "apiVersion: " + KubeletAPIVersion + "\nkind: " + KubeletKind + "\n"

func addServer(text string, s JoinSettings) string {
	if strings.TrimSpace(text) == "" {
		text = newFile
	}
	if !hasField(text, "authentication") {
		text = addLines(
			text,
			KubeletAPIVersion,
			KubeletKind,
			"authentication:\n  x509:\n    clientCAFile: "+s.ClientCA+"\n",
		)
	}
	// The server requires a serving certificate that it has issued.
	if !hasField(text, "serverTLSBootstrap") && !hasField(text, "tlsCertFile") {
		text = addLines(text, KubeletAPIVersion, KubeletKind, "serverTLSBootstrap: true\n")
	}
	if hasField(text, "kubeconfig") || hasField(text, "bootstrapKubeconfig") {
		return text // the caller compares the values
	}
	return addLines(
		text,
		BerthAPIVersion,
		BerthKind,
		fmt.Sprintf("kubeconfig: %s\nbootstrapKubeconfig: %s\n", s.Kubeconfig, s.BootstrapKubeconfig),
	)
}

// hasField reports whether a document has a top-level field of that name.
func hasField(text, field string) bool { return strings.Contains("\n"+text, "\n"+field+":") }

// addLines inserts lines into the document of a kind, which is created if it does not exist.
func addLines(text, version, kind, lines string) string {
	line := "kind: " + kind + "\n"
	if i := strings.Index("\n"+text, "\n"+line); i >= 0 {
		at := i + len(line)
		return text[:at] + lines + text[at:]
	}
	return strings.TrimRight(text, "\n") + "\n---\napiVersion: " + version + "\n" + line + lines
}
