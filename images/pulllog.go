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

// pullLog is what is written down of pulls, so that an image that was pulled
// with somebody's credentials is told from one that was brought to the node by
// other means, also after a crash. The files are the kubelet's:
//
//	<dir>/pulling/sha256-<of the image name>  before a pull begins, until its end is known
//	<dir>/pulled/sha256-<of the image ID>     with whose credentials it was pulled
//
//	            begin            succeeded
//	(nothing) ─────────► pulling ─────────► pulled
//	    ▲ failed for sure  │ │ ▲
//	    └──────────────────┘ └─┘ nobody knows, the agent died: it may have been pulled
//
// All is read once, when it is first asked for, and kept: there is one small
// file per image.
type pullLog struct {
	dir string // empty: nothing is written, and all is forgotten with the process
	now func() time.Time

	disk sync.Mutex // held while files are written, so that who only asks does not wait for the disk; before mu

	mu      sync.Mutex
	read    bool
	pulling map[string]*intent                          // by file name
	pulled  map[string]kubeletv1beta1.ImagePulledRecord // by file name; without an ImageRef: it could not be read
}

// intent is a pull that has begun and of which it is not known how it ended.
type intent struct {
	image string // as the runtime was asked for it; empty: it could not be read
	open  int    // pulls that are under way
	stale bool   // an earlier one may have brought the image without leaving a record
}

func newPullLog(dir string, now func() time.Time) *pullLog {
	return &pullLog{dir: dir, now: now, pulling: map[string]*intent{}, pulled: map[string]kubeletv1beta1.ImagePulledRecord{}}
}

// of tells with whose credentials an image was pulled from the repository of n.
// Pulled says that it was pulled for pods at all, from wherever; where no
// credentials are known then, nobody's count.
func (l *pullLog) of(n podspec.ImageName, id string) (known kubeletv1beta1.ImagePullCredentials, pulled bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.load()
	rec, pulled := l.pulled[fileOf(id)]
	for image, c := range rec.CredentialMapping {
		if m, err := podspec.ParseImageName(image); err == nil && m.Repository() == n.Repository() {
			return c, true
		}
	}
	if pulled {
		return known, true
	}
	for _, in := range l.pulling {
		if m, err := podspec.ParseImageName(in.image); err != nil || m == n { // what cannot be read may be about any image
			return known, true
		}
	}
	return known, false
}

// came reports whether an image was pulled, by what is written down.
func (l *pullLog) came(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.load()
	_, pulled := l.pulled[fileOf(id)]
	return pulled
}

// begin writes down that an image is about to be pulled.
func (l *pullLog) begin(image string) error {
	l.disk.Lock()
	defer l.disk.Unlock()
	file := fileOf(image)
	if !l.open(file, image) {
		return nil
	}
	err := l.write("pulling", file, &kubeletv1beta1.ImagePullIntent{TypeMeta: typeOf("ImagePullIntent"), Image: image})
	if err != nil {
		l.close(file, func(*intent) {})
	}
	return err
}

// open counts one more pull, and reports whether it is to be written down.
func (l *pullLog) open(file, image string) (fresh bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.load()
	in, there := l.pulling[file]
	if !there {
		in = &intent{image: image}
		l.pulling[file] = in
	}
	in.open++
	return !there
}

// close counts one pull less, and reports whether nothing is open any more.
func (l *pullLog) close(file string, note func(*intent)) (settled bool) {
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

// succeeded writes down with whose credentials an image was pulled. If that
// cannot be written, the intent stays: nobody gets the image for nothing.
func (l *pullLog) succeeded(image string, n podspec.ImageName, id string, c credentials) {
	l.disk.Lock()
	defer l.disk.Unlock()
	written := l.merge(n, id, c)
	if file := fileOf(image); l.close(file, func(in *intent) { in.stale = !written }) {
		l.remove("pulling", file)
	}
}

// failed notes the end of a pull. Surely says that the runtime has answered that
// no image came; else it may still have come.
func (l *pullLog) failed(image string, surely bool) {
	l.disk.Lock()
	defer l.disk.Unlock()
	if file := fileOf(image); l.close(file, func(in *intent) { in.stale = in.stale || !surely }) {
		l.remove("pulling", file)
	}
}

// add writes down one more Secret that gives access to an image.
func (l *pullLog) add(n podspec.ImageName, id string, c credentials) {
	l.disk.Lock()
	defer l.disk.Unlock()
	l.merge(n, id, c)
}

// merge reports whether what is known by now is written down.
func (l *pullLog) merge(n podspec.ImageName, id string, c credentials) bool {
	rec, changed := l.learn(n, id, c)
	return !changed || l.write("pulled", fileOf(id), &rec) == nil
}

// learn takes in with whose credentials an image was pulled.
func (l *pullLog) learn(n podspec.ImageName, id string, c credentials) (_ kubeletv1beta1.ImagePulledRecord, changed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rec := l.pulled[fileOf(id)]
	key := n.Repository()
	for image := range rec.CredentialMapping {
		if m, err := podspec.ParseImageName(image); err == nil && m.Repository() == key {
			key = image // as a kubelet has spelled it
		}
	}
	creds, changed := merged(rec.CredentialMapping[key], c)
	if !changed && rec.ImageRef == id {
		return rec, false
	}
	rec.TypeMeta, rec.ImageRef, rec.LastUpdatedTime = typeOf("ImagePulledRecord"), id, metav1.Time{Time: l.now()}
	rec.CredentialMapping = maps.Clone(rec.CredentialMapping)
	if rec.CredentialMapping == nil {
		rec.CredentialMapping = map[string]kubeletv1beta1.ImagePullCredentials{}
	}
	rec.CredentialMapping[key] = creds
	l.pulled[fileOf(id)] = rec
	return rec, true
}

// prune forgets images that are gone: those that are left were listed by the
// runtime since began.
func (l *pullLog) prune(left []stored, began time.Time) {
	l.disk.Lock()
	defer l.disk.Unlock()
	ids, all := map[string]bool{}, map[string]bool{}
	for _, s := range left {
		ids[fileOf(s.id)] = true
		maps.Copy(all, names(slices.Values(s.names)))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.load()
	for file, rec := range l.pulled {
		if !ids[file] && rec.LastUpdatedTime.Time.Before(began) {
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

// load reads all files once; the lock is held. A file that cannot be read counts
// as a pull of which nothing is known.
func (l *pullLog) load() {
	if l.read {
		return
	}
	l.read = true
	if l.dir == "" {
		return
	}
	l.each("pulling", func(file string, raw []byte) {
		var in kubeletv1beta1.ImagePullIntent
		_ = json.Unmarshal(raw, &in)
		l.pulling[file] = &intent{image: in.Image, stale: true}
	})
	l.each("pulled", func(file string, raw []byte) {
		var rec kubeletv1beta1.ImagePulledRecord
		if json.Unmarshal(raw, &rec) != nil || fileOf(rec.ImageRef) != file {
			rec = kubeletv1beta1.ImagePulledRecord{}
		}
		l.pulled[file] = rec
	})
}

func (l *pullLog) each(sub string, take func(file string, raw []byte)) {
	entries, err := os.ReadDir(filepath.Join(l.dir, sub))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		take("", nil) // anything may have been pulled
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "sha256-") {
			raw, _ := os.ReadFile(filepath.Join(l.dir, sub, e.Name()))
			take(e.Name(), raw)
		}
	}
}

// write replaces a file at once, and returns when it would survive the loss of
// power.
func (l *pullLog) write(sub, file string, v any) error {
	if l.dir == "" {
		return nil
	}
	dir := filepath.Join(l.dir, sub)
	raw, err := json.Marshal(v)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err == nil {
		err = replace(dir, file, append(bytes.TrimSpace(raw), '\n'))
	}
	if err != nil {
		return fmt.Errorf("write the record of a pull: %w", err)
	}
	return nil
}

func replace(dir, file string, content []byte) error {
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

// remove takes a file away. One that stays makes pods prove their access.
func (l *pullLog) remove(sub, file string) {
	if l.dir != "" && file != "" {
		_ = os.Remove(filepath.Join(l.dir, sub, file))
	}
}

func fileOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return "sha256-" + hex.EncodeToString(sum[:])
}

func typeOf(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: kubeletv1beta1.SchemeGroupVersion.String(), Kind: kind}
}
