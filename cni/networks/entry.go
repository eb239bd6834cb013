package networks

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// entry is the persisted state of a sandbox.
type entry struct {
	Version     int          `json:"version"`
	Sandbox     string       `json:"sandbox"`
	NetNS       string       `json:"netns"`
	Pod         Pod          `json:"pod"`
	Done        bool         `json:"done"` // every ADD has succeeded
	Attachments []attachment `json:"attachments"`
	Status      []Status     `json:"status,omitempty"`

	reported    bool   // the status was reported to the API server
	detaching   bool   // Detach has started, so some networks may be detached
	lastFailure string // last result of CHECK
}

// attachment is one network with everything that DEL needs.
type attachment struct {
	Request      Request         `json:"request"`
	Config       json.RawMessage `json:"config"`
	Capabilities map[string]any  `json:"capabilities,omitempty"`
}

const entryVersion = 1

// load reads the persisted entries. Unreadable files are reported and left in place. Their
// sandboxes are attached again.
func load(dir string) (map[string]*entry, error) {
	out := map[string]*entry{}
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return out, err
	}
	var errs []error
	for _, f := range files {
		id, ok := strings.CutSuffix(f.Name(), ".json")
		if !ok || f.IsDir() || strings.HasPrefix(id, ".") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, f.Name()))
		e := new(entry)
		if err == nil {
			err = json.Unmarshal(text, e)
		}
		if err == nil && (e.Version != entryVersion || e.Sandbox != id) {
			err = errors.New("version or sandbox does not match")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", filepath.Join(dir, f.Name()), err))
			continue
		}
		out[id] = e
	}
	return out, errors.Join(errs...)
}

// save writes an entry atomically and durably.
func (e *entry) save(dir string) error {
	text, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	next := filepath.Join(dir, "."+e.Sandbox+".new")
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(next, filepath.Join(dir, e.Sandbox+".json"))
	}
	if err != nil {
		return errors.Join(err, os.Remove(next))
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (e *entry) remove(dir string) error {
	err := os.Remove(filepath.Join(dir, e.Sandbox+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
