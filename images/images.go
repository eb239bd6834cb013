package images

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/agent/plan"
	"berth/podspec"
)

// statusTimeout bounds one question to the runtime about an image.
const statusTimeout = 30 * time.Second

// defaultParallel is how many pulls run at once when nothing is said.
const defaultParallel = 5

// Options says how images are pulled.
type Options struct {
	Service     runtimeapi.ImageServiceClient // of the runtime; required
	MaxParallel int                           // pulls at once; 0: 5
	QPS         float64                       // pulls that may begin per second; 0: no limit
	Burst       int                           // pulls that may begin at once after a rest; at least 1
	Timeout     time.Duration                 // longest single pull; 0: as long as the runtime takes

	Verify  Verification        // of the credentials for images that are here already
	OnCheck func(result string) // told after each check whether a pod may use an image that is here; nil: told nobody

	// DiskSpace tells how the disk for images stands, if it is known. It must be quick and
	// is asked at any time; nil: it is never known, and all pulls may begin. While there is none for a pull, MakeRoom is
	// asked to remove what nobody needs until it is enough (nil: nothing is), and
	// HeldChanged is told whenever the answer of Held has changed for some image (nil:
	// nobody is).
	DiskSpace                func() (s DiskSpace, known bool)
	FreeSpace                func(ctx context.Context, enough func() bool)
	OnWaitingForSpaceChanged func()
	Standalone               bool // no server: see podspec.Critical

	// DownloadProgress says how far the runtime is with what it downloads now, for people; empty:
	// it does not tell. Nil: it never does.
	DownloadProgress func() string

	// Warn is told what does not stop a pull: a pull secret that is missing or
	// that cannot be read. The reason is that of an event; nil: told nobody.
	Warn func(pod *corev1.Pod, reason, message string)
	Now  func() time.Time // nil: time.Now
}

// Manager is the node's images. Its methods may be called by anybody at any time.
type Manager struct {
	service runtimeapi.ImageServiceClient
	timeout time.Duration
	warn    func(pod *corev1.Pod, reason, message string)
	now     func() time.Time
	verify  Verification
	checked func(result string)
	pullLog *pullLog
	gate    *gate
	asks    *flights[presence, struct{}]
	pulls   *flights[plan.Image, pull]

	room        func(ctx context.Context, enough func() bool) // see Options.MakeRoom
	heldChanged func()
	making      chan struct{} // room is being made; capacity 1
	standalone  bool
	coming      func() string

	mu      sync.Mutex
	records map[string]record // by image ID: see gc.go
	looked  bool              // records has been filled once
}

// presence is the runtime's answer about one image.
type presence struct {
	image plan.Image
	here  bool
}

// New returns the images of the runtime behind o.Service. Close it.
func New(o Options) *Manager {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Warn == nil {
		o.Warn = func(*corev1.Pod, string, string) {}
	}
	if o.OnCheck == nil {
		o.OnCheck = func(string) {}
	}
	if o.DownloadProgress == nil {
		o.DownloadProgress = func() string { return "" }
	}
	if o.OnWaitingForSpaceChanged == nil {
		o.OnWaitingForSpaceChanged = func() {}
	}
	slots := o.MaxParallel
	if slots <= 0 {
		slots = defaultParallel
	}
	i := &Manager{
		service: o.Service, timeout: o.Timeout, warn: o.Warn, now: o.Now,
		verify: o.Verify, checked: o.OnCheck, pullLog: newPullLog(o.Verify.RecordsDir, o.Now),
		gate:    newGate(slots, o.QPS, o.Burst, o.Now),
		asks:    newFlights[presence, struct{}](),
		pulls:   newFlights[plan.Image, pull](),
		records: map[string]record{},
		room:    o.FreeSpace, heldChanged: o.OnWaitingForSpaceChanged, making: make(chan struct{}, 1), standalone: o.Standalone, coming: o.DownloadProgress,
	}
	i.gate.space = o.DiskSpace
	return i
}

// Close calls off what is under way and waits for its end. Later calls fail with
// kind Canceled.
func (i *Manager) Close() {
	i.gate.close()
	i.pulls.close()
	i.asks.close()
}

// Present tells whether an image is on the node and the pod may use it. Secrets
// are the pull secrets that the pod names. The runtime is asked every time, once
// for all who ask at once: nobody tells when a name comes to stand for another
// image. Errors are *plan.Error with reason InvalidImageName or ImageInspectError.
func (i *Manager) Present(ctx context.Context, pod *corev1.Pod, image string, secrets plan.Objects) (plan.Image, bool, error) {
	n, err := podspec.ParseImageName(image)
	if err != nil {
		return plan.Image{}, false, invalidName(image, err)
	}
	img, here, err := i.here(ctx, image, n)
	if err != nil || !here || !i.mayUse(pod, n, img.ID, secrets) {
		return plan.Image{}, false, err
	}
	return img, true, nil
}

// Observe is Present for several images.
func (i *Manager) Observe(ctx context.Context, pod *corev1.Pod, images []string, secrets plan.Objects) plan.ImagesSeen {
	seen := make(plan.ImagesSeen, len(images))
	for _, name := range images {
		img, here, err := i.Present(ctx, pod, name, secrets)
		s := plan.ImageSeen{Image: img, Here: here}
		if err != nil {
			s.Unclear = err.Error()
		}
		seen[name] = s
	}
	return seen
}

// here is Present whatever pod asks.
func (i *Manager) here(ctx context.Context, image string, n podspec.ImageName) (plan.Image, bool, error) {
	p, _, err := i.asks.do(ctx, image, asker[struct{}]{}, func(ctx context.Context, _ *struct{}) (presence, error) {
		return i.inspect(ctx, tagged(image, n), n)
	})
	if err != nil {
		return plan.Image{}, false, inspectError(image, err)
	}
	if p.here {
		i.use(p.image)
	}
	return p.image, p.here, nil
}

// Resolve is Present for a container that is about to start: an image that is not
// here is an error of kind ImageGone.
func (i *Manager) Resolve(ctx context.Context, pod *corev1.Pod, image string, secrets plan.Objects) (plan.Image, error) {
	img, here, err := i.Present(ctx, pod, image, secrets)
	if err == nil && !here {
		err = &plan.Error{Kind: plan.ImageGone, Reason: "CreateContainerError", Err: fmt.Errorf("image %q is not on the node any more", image)}
	}
	return img, err
}

// inspect asks the runtime about ref. The image's Ref is the digest that it has
// in the repository of n.
func (i *Manager) inspect(ctx context.Context, ref string, n podspec.ImageName) (presence, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	began := i.now()
	resp, err := i.service.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	if err != nil {
		return presence{}, err
	}
	img := resp.GetImage()
	if img == nil {
		return presence{}, nil
	}
	if img.GetId() == "" {
		return presence{}, errors.New("the runtime shows the image without an ID")
	}
	p := presence{here: true, image: plan.Image{ID: img.GetId(), Ref: repoDigest(img, n), Size: img.GetSize(), At: began}}
	if uid := img.GetUid(); uid != nil {
		p.image.UID = &uid.Value
	} else {
		p.image.User = img.GetUsername()
	}
	return p, nil
}

// repoDigest is the image's digest in the repository it was asked for, or in any
// other, or its ID when it was never in a repository.
func repoDigest(img *runtimeapi.Image, n podspec.ImageName) string {
	for _, d := range img.GetRepoDigests() {
		if repo, _, ok := strings.Cut(d, "@"); ok && repo == n.Repository() {
			return d
		}
	}
	if ds := img.GetRepoDigests(); len(ds) > 0 {
		return ds[0]
	}
	return img.GetId()
}

// latest is the tag of a name that gives none.
const latest = "latest"

// tagged is the name as the runtime is asked for it: what the pod says, with the
// default tag where it says neither tag nor digest. The host is left to the
// runtime, which may have its own short names.
func tagged(image string, n podspec.ImageName) string {
	last := image[strings.LastIndex(image, "/")+1:]
	if n.Tag == latest && n.Digest == "" && !strings.Contains(last, ":") {
		return image + ":" + latest
	}
	return image
}
