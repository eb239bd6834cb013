package handover

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"berth/internal/nodeconfig"
)

// Process is the unit files and the process of the kubelet, as systemd reports them.
type Process struct {
	UnitFiles   []string // unit file and drop-ins, in order
	CommandLine []string // of the running kubelet; nil: it does not run
}

// Read reads the kubelet's command line and configuration, and what is on disk of its pods. It does
// not contact the runtime or the API server.
func Read(p Process, unit UnitState) (Facts, error) {
	f := Facts{Unit: unit, Existing: map[string]bool{}}
	if !unit.Loaded {
		return f, nil
	}
	command, err := readCommand(p.UnitFiles)
	if err != nil && p.CommandLine == nil {
		return f, err
	}
	f.UnitChanged = p.CommandLine != nil && (err != nil || !sameArguments(command, p.CommandLine))
	if p.CommandLine != nil {
		command = p.CommandLine
	}
	f.Args, f.Program = arguments(command), program(command)
	s := Resolve(f.Args, nil)
	if f.Documents, err = readDocuments(s); err != nil {
		return f, err
	}
	s = Resolve(f.Args, f.Documents)
	kubeconfig, bootstrap := s.Kubeconfig()
	for _, path := range []string{kubeconfig, bootstrap} {
		_, err := os.Stat(path)
		f.Existing[path] = err == nil
	}
	if f.StateSpace, err = freeSpace(nodeconfig.DefaultStateDir); err != nil {
		return f, err
	}
	f.Checkpoints, f.Volumes, err = ReadState(s.RootDir())
	if path, ok := s.Kubelet["staticPodPath"].(string); ok && err == nil {
		f.StaticFiles = staticFiles(path)
	}
	return f, err
}

// freeSpace returns the free space of the file system on which a directory is or will be, in bytes.
func freeSpace(dir string) (uint64, error) {
	for {
		var st unix.Statfs_t
		err := unix.Statfs(dir, &st)
		if err == nil {
			return st.Bavail * uint64(st.Bsize), nil
		}
		if !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			return 0, &fs.PathError{Op: "statfs", Path: dir, Err: err}
		}
		dir = filepath.Dir(dir)
	}
}

// ReadState reads the kubelet's checkpoints and lists the volumes in a root directory.
func ReadState(rootDir string) (map[string]string, []Volume, error) {
	checkpoints := map[string]string{}
	for _, name := range checkpointNames {
		content, err := os.ReadFile(filepath.Join(rootDir, name))
		switch {
		case err == nil:
			checkpoints[name] = string(content)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, nil, err
		}
	}
	found, err := readVolumes(rootDir)
	return checkpoints, found, err
}

// WriteResized writes the resources of pods to the checkpoints in a root directory. It can be repeated.
func WriteResized(rootDir string, resized map[types.UID]Allocation) error {
	for _, name := range []string{allocatedPods, actuatedPods} {
		path := filepath.Join(rootDir, name)
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		text := ""
		if err == nil {
			text, err = WithResized(name, string(content), resized)
		}
		if err == nil {
			err = WriteFile(path, text, 0o600)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// arguments returns the arguments of the kubelet. The kubelet can be a script, which follows its
// interpreter in the command line of its process.
func arguments(command []string) []string {
	for i, word := range command {
		if filepath.Base(word) == "kubelet" {
			return command[i+1:]
		}
	}
	return command[min(1, len(command)):]
}

// program returns the program of the kubelet. Empty: it is not known by an absolute path.
func program(command []string) string {
	for _, word := range command {
		if filepath.Base(word) == "kubelet" && filepath.IsAbs(word) {
			return word
		}
	}
	return ""
}

func sameArguments(a, b []string) bool { return slices.Equal(arguments(a), arguments(b)) }

func readCommand(paths []string) ([]string, error) {
	var files []UnitFile
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files = append(files, UnitFile{path, string(content)})
	}
	u, err := ParseUnit(files)
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for _, f := range u.EnvironmentFiles {
		content, err := os.ReadFile(f.Path)
		if err == nil {
			texts[f.Path] = string(content)
		}
	}
	return u.CommandLine(texts)
}

func readDocuments(s *Settings) (docs []UnitFile, err error) {
	read := func(path string) error {
		content, err := os.ReadFile(path)
		docs = append(docs, UnitFile{path, string(content)})
		return err
	}
	if s.Config != "" {
		if err := read(s.Config); err != nil {
			return nil, err
		}
	}
	if s.Dropins == "" {
		return docs, nil
	}
	return docs, filepath.WalkDir(s.Dropins, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || filepath.Ext(path) != ".conf" {
			return err
		}
		return read(path)
	})
}

// readVolumes lists the volumes in all pod directories.
func readVolumes(rootDir string) (out []Volume, err error) {
	const pattern = "pods/*/volumes/*/*"
	paths, err := filepath.Glob(filepath.Join(rootDir, pattern))
	for _, path := range paths {
		part := strings.Split(strings.TrimPrefix(path, filepath.Clean(rootDir)+"/"), "/")
		out = append(out, Volume{Pod: types.UID(part[1]), Plugin: part[3], Name: part[4]})
	}
	return out, err
}

// staticFiles lists the files in the directory from which the kubelet reads static pods. A missing
// directory and a single file have none. The agent reports an unreadable path.
func staticFiles(path string) (out []string) {
	entries, _ := os.ReadDir(path)
	for _, e := range entries {
		if !e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			out = append(out, filepath.Join(path, e.Name()))
		}
	}
	return out
}
