package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

const (
	ownerName = ".berth" // marks a pod directory that berth created
	newPrefix = ".new-"  // prefix of a pod directory before it has its mark and its final name
	ownerText = "This pod directory was created by berth, which removes it together with the pod.\n"
)

// ErrForeign reports that a pod directory was not created by berth.
var ErrForeign = errors.New("not created by berth")

// PodDir reports whether the pod has a directory, and whether that has the mark of berth.
func (v *Volumes) PodDir(uid types.UID) (exists, owned bool, err error) {
	return podDir(v.podsDir(), uid)
}

func podDir(pods string, uid types.UID) (there, owned bool, err error) {
	if err := checkNames(string(uid)); err != nil {
		return false, false, err
	}
	dir := filepath.Join(pods, string(uid))
	if there, err = exists(dir); err != nil || !there {
		return false, false, err
	}
	owned, err = exists(filepath.Join(dir, ownerName))
	if errors.Is(err, unix.ENOTDIR) { // a file of another program
		err = nil
	}
	return true, owned, err
}

// ClaimDir creates the pod's directory with the mark of berth. The directory gets its name only
// after its mark: no crash leaves a directory without a mark. It is not an error if the directory
// exists and has the mark. If it exists without the mark, the error is ErrForeign, and nothing is
// changed.
func (v *Volumes) ClaimDir(uid types.UID) error {
	v.claims.Lock()
	defer v.claims.Unlock()
	there, owned, err := v.PodDir(uid)
	switch {
	case err != nil:
		return err
	case owned:
		return nil
	case there:
		return fmt.Errorf("pod directory %s: %w", v.podDir(uid), ErrForeign)
	}
	dir := filepath.Join(v.podsDir(), newPrefix+string(uid))
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	if err := writeOwner(dir); err != nil {
		return err
	}
	err = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, v.podDir(uid), unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) { // not supported by the file system
		err = os.Rename(dir, v.podDir(uid))
	}
	if err != nil {
		return fmt.Errorf("create pod directory %s: %w", v.podDir(uid), errors.Join(err, os.RemoveAll(dir)))
	}
	return nil
}

// MarkDir marks an existing directory of a pod that belongs to berth by other evidence. It is not
// an error if there is no directory.
func (v *Volumes) MarkDir(uid types.UID) error {
	v.claims.Lock()
	defer v.claims.Unlock()
	there, owned, err := v.PodDir(uid)
	if err != nil || !there || owned {
		return err
	}
	return writeOwner(v.podDir(uid))
}

func writeOwner(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, ownerName), []byte(ownerText), 0o600); err != nil {
		return fmt.Errorf("mark pod directory: %w", err)
	}
	return nil
}

// requireOwn returns ErrForeign for a directory without the mark, and creates a missing one.
func (v *Volumes) requireOwn(uid types.UID) error {
	if v.Claim != nil {
		return v.Claim(uid)
	}
	return v.ClaimDir(uid)
}

// Pods lists the UIDs of the pods of berth with a directory on the host.
func (v *Volumes) Pods(ctx context.Context) ([]types.UID, error) {
	own, _, err := ListPods(ctx, v.RootDir)
	return own, err
}

// ListPods lists the UIDs of the pods with a directory below a root directory, separately for
// directories that berth created and for foreign ones. It is not an error if there is no root
// directory.
func ListPods(ctx context.Context, rootDir string) (own, foreign []types.UID, err error) {
	pods := filepath.Join(rootDir, "pods")
	entries, err := os.ReadDir(pods)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err = errors.Join(ctx.Err(), err); err != nil {
		return nil, nil, failed("", fmt.Errorf("list pod directories: %w", err))
	}
	seen := map[string]bool{}
	for _, e := range entries {
		// An interrupted removal leaves a directory with the prefix and the pod's UID.
		uid, trash := strings.CutPrefix(e.Name(), trashPrefix)
		if !e.IsDir() || strings.ContainsFunc(uid, invalidUIDRune) || checkNames(uid) != nil || seen[uid] {
			continue
		}
		_, owned, err := podDir(pods, types.UID(uid))
		switch {
		case err != nil:
			return nil, nil, failed("", fmt.Errorf("list pod directories: %w", err))
		case owned || trash:
			seen[uid] = true
			own = append(own, types.UID(uid))
		default:
			foreign = append(foreign, types.UID(uid))
		}
	}
	return own, foreign, nil
}

// removeUnfinished removes the directories that ClaimDir has created but not renamed before a crash.
// They contain only the mark.
func (v *Volumes) removeUnfinished() error {
	entries, err := os.ReadDir(v.podsDir())
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), newPrefix) {
			err = errors.Join(err, removeTree(context.Background(), filepath.Join(v.podsDir(), e.Name())))
		}
	}
	return err
}
