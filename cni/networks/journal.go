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

// entry is what is kept of one sandbox.
type entry struct {
	Version     int          `json:"version"`
	Sandbox     string       `json:"sandbox"`
	NetNS       string       `json:"netns"`
	Pod         Pod          `json:"pod"`
	Done        bool         `json:"done"` // every ADD has succeeded
	Attachments []attachment `json:"attachments"`
	Status      []Status     `json:"status,omitempty"`

	told    bool   // the server has the status
	leaving bool   // it is being taken away, and some of it may be gone
	wrong   string // what CHECK last said
}

// attachment is one, with all that is needed to take it away.
type attachment struct {
	Request      Request         `json:"request"`
	Config       json.RawMessage `json:"config"`
	Capabilities map[string]any  `json:"capabilities,omitempty"`
}

const entryVersion = 1

// load reads what an earlier life has kept. Files that cannot be read are named
// and left where they are: their sandboxes get new networks.
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
			err = errors.New("is not of this version or sandbox")
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", filepath.Join(dir, f.Name()), err))
			continue
		}
		out[id] = e
	}
	return out, errors.Join(errs...)
}

// keep puts an entry on disk, at once and lastingly.
func (e *entry) keep(dir string) error {
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

func (e *entry) drop(dir string) error {
	err := os.Remove(filepath.Join(dir, e.Sandbox+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
