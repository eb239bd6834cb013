package images

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"

	"berth/podspec"
)

// pullRecords persists which credentials an image was pulled with, to tell pulled images from
// images that were loaded by other means, even after a crash. The files are the kubelet's:
//
//	<dir>/pulling/sha256-<of the image name>  from before a pull starts until its result is known
//	<dir>/pulled/sha256-<of the image ID>     the credentials that it was pulled with
//
//	          recordIntent     recordSuccess
//	(nothing) ─────────► pulling ─────────► pulled
//	    ▲ certain failure  │ │ ▲
//	    └──────────────────┘ └─┘ unknown result, or the agent died: it may have been pulled
//
// All files are read once, on first use, and cached: there is one small file per image.
type pullRecords struct {
	dir string // empty: nothing is persisted
	now func() time.Time

	disk sync.Mutex // held while files are written, so that lookups do not wait for the disk; locked before mu

	mu      sync.Mutex
	loaded  bool
	pulling map[string]*pullIntent                      // by file name
	pulled  map[string]kubeletv1beta1.ImagePulledRecord // by file name; without an ImageRef: it could not be read
}

// pullIntent is a pull whose result is unknown.
type pullIntent struct {
	image string // name in the request to the runtime; empty: it could not be read
	open  int    // pulls in progress
	stale bool   // an earlier pull may have succeeded without a record
}

func newPullRecords(dir string, now func() time.Time) *pullRecords {
	return &pullRecords{dir: dir, now: now, pulling: map[string]*pullIntent{},
		pulled: map[string]kubeletv1beta1.ImagePulledRecord{}}
}

// lookup returns the credentials with which an image was pulled from the repository of n. pulled
// means that it was pulled for pods at all, from any repository. If no credentials are known in
// that case, no credentials match.
func (l *pullRecords) lookup(n podspec.ImageName, id string) (known kubeletv1beta1.ImagePullCredentials, pulled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.load()
	rec, pulled := l.pulled[recordFileName(id)]
	for image, c := range rec.CredentialMapping {
		if m, err := podspec.ParseImageName(image); err == nil && m.Repository() == n.Repository() {
			return c, true
		}
	}
	if pulled {
		return known, true
	}
	for _, in := range l.pulling {
		if m, err := podspec.ParseImageName(in.image); err != nil || m == n { // an unreadable one may be for any image
			return known, true
		}
	}
	return known, false
}

// wasPulled reports whether an image has a record.
func (l *pullRecords) wasPulled(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.load()
	_, pulled := l.pulled[recordFileName(id)]
	return pulled
}

// recordIntent records that an image is about to be pulled.
func (l *pullRecords) recordIntent(image string) error {
	l.disk.Lock()
	defer l.disk.Unlock()
	file := recordFileName(image)
	if !l.openIntent(file, image) {
		return nil
	}
	err := l.write("pulling", file, &kubeletv1beta1.ImagePullIntent{TypeMeta: typeMeta("ImagePullIntent"),
		Image: image})
	if err != nil {
		l.closeIntent(file, func(*pullIntent) {})
	}
	return err
}

// openIntent counts a pull, and reports whether it has to be persisted.
func (l *pullRecords) openIntent(file, image string) (created bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.load()
	in, exists := l.pulling[file]
	if !exists {
		in = &pullIntent{image: image}
		l.pulling[file] = in
	}
	in.open++
	return !exists
}

// closeIntent ends a pull, and reports whether no pull is left.
func (l *pullRecords) closeIntent(file string, note func(*pullIntent)) (settled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	in := l.pulling[file]
	if in == nil {
		return false
	}
	in.open--
	note(in)
	if in.open > 0 || in.stale {
		return false
	}
	delete(l.pulling, file)
	return true
}

// recordSuccess records the credentials of a pull. If that fails, the intent is kept, so that no
// pod gets the image without proving its access.
func (l *pullRecords) recordSuccess(image string, n podspec.ImageName, id string, c credentials) {
	l.disk.Lock()
	defer l.disk.Unlock()
	written := l.persist(n, id, c)
	if file := recordFileName(image); l.closeIntent(file, func(in *pullIntent) { in.stale = !written }) {
		l.remove("pulling", file)
	}
}

// recordFailure records the end of a failed pull. definite means that the image was definitely not
// pulled.
func (l *pullRecords) recordFailure(image string, definite bool) {
	l.disk.Lock()
	defer l.disk.Unlock()
	if file := recordFileName(image); l.closeIntent(file, func(in *pullIntent) { in.stale = in.stale || !definite }) {
		l.remove("pulling", file)
	}
}

// add records one more Secret that has access to an image.
func (l *pullRecords) add(n podspec.ImageName, id string, c credentials) {
	l.disk.Lock()
	defer l.disk.Unlock()
	l.persist(n, id, c)
}

// persist merges the credentials of a pull and reports whether the record is on disk.
func (l *pullRecords) persist(n podspec.ImageName, id string, c credentials) bool {
	rec, changed := l.mergeRecord(n, id, c)
	return !changed || l.write("pulled", recordFileName(id), &rec) == nil
}

// mergeRecord merges the credentials of a pull into the record in memory.
func (l *pullRecords) mergeRecord(n podspec.ImageName, id string,
	c credentials) (_ kubeletv1beta1.ImagePulledRecord, changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rec := l.pulled[recordFileName(id)]
	key := n.Repository()
	for image := range rec.CredentialMapping {
		if m, err := podspec.ParseImageName(image); err == nil && m.Repository() == key {
			key = image // keep the spelling of a kubelet
		}
	}
	creds, changed := mergeCredentials(rec.CredentialMapping[key], c)
	if !changed && rec.ImageRef == id {
		return rec, false
	}
	rec.TypeMeta, rec.ImageRef, rec.LastUpdatedTime = typeMeta("ImagePulledRecord"), id, metav1.Time{Time: l.now()}
	rec.CredentialMapping = maps.Clone(rec.CredentialMapping)
	if rec.CredentialMapping == nil {
		rec.CredentialMapping = map[string]kubeletv1beta1.ImagePullCredentials{}
	}
	rec.CredentialMapping[key] = creds
	l.pulled[recordFileName(id)] = rec
	return rec, true
}

// prune deletes the records of removed images. left are the images that the runtime listed after
// startedAt.
func (l *pullRecords) prune(left []storedImage, startedAt time.Time) {
	l.disk.Lock()
	defer l.disk.Unlock()
	ids, all := map[string]bool{}, map[string]bool{}
	for _, s := range left {
		ids[recordFileName(s.id)] = true
		maps.Copy(all, nameSet(slices.Values(s.names)))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.load()
	for file, rec := range l.pulled {
		if !ids[file] && rec.LastUpdatedTime.Time.Before(startedAt) {
			l.remove("pulled", file)
			delete(l.pulled, file)
		}
	}
	for file, in := range l.pulling {
		n, err := podspec.ParseImageName(in.image)
		if in.open == 0 && (err != nil && len(left) == 0 || err == nil && !all[n.String()]) {
			l.remove("pulling", file)
			delete(l.pulling, file)
		}
	}
}

// load reads all files once. The caller holds the lock. An unreadable file counts as a pull with
// unknown credentials.
func (l *pullRecords) load() {
	if l.loaded {
		return
	}
	l.loaded = true
	if l.dir == "" {
		return
	}
	l.readDir("pulling", func(file string, raw []byte) {
		var in kubeletv1beta1.ImagePullIntent
		_ = json.Unmarshal(raw, &in)
		l.pulling[file] = &pullIntent{image: in.Image, stale: true}
	})
	l.readDir("pulled", func(file string, raw []byte) {
		var rec kubeletv1beta1.ImagePulledRecord
		if json.Unmarshal(raw, &rec) != nil || recordFileName(rec.ImageRef) != file {
			rec = kubeletv1beta1.ImagePulledRecord{}
		}
		l.pulled[file] = rec
	})
}

func (l *pullRecords) readDir(sub string, handle func(file string, raw []byte)) {
	entries, err := os.ReadDir(filepath.Join(l.dir, sub))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		handle("", nil) // any image may have been pulled
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "sha256-") {
			raw, _ := os.ReadFile(filepath.Join(l.dir, sub, e.Name()))
			handle(e.Name(), raw)
		}
	}
}

// write replaces a file atomically and syncs it.
func (l *pullRecords) write(sub, file string, v any) error {
	if l.dir == "" {
		return nil
	}
	dir := filepath.Join(l.dir, sub)
	raw, err := json.Marshal(v)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = writeFileAtomic(dir, file, append(bytes.TrimSpace(raw), '\n'))
	}
	if err != nil {
		return fmt.Errorf("write image pull record: %w", err)
	}
	return nil
}

func writeFileAtomic(dir, file string, content []byte) error {
	f, err := os.CreateTemp(dir, ".new-")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(dir, file))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// remove deletes a file. If that fails, pods have to prove their access.
func (l *pullRecords) remove(sub, file string) {
	if l.dir != "" && file != "" {
		_ = os.Remove(filepath.Join(l.dir, sub, file))
	}
}

func recordFileName(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "sha256-" + hex.EncodeToString(sum[:])
}

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: kubeletv1beta1.SchemeGroupVersion.String(), Kind: kind}
}
