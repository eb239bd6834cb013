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

// statusTimeout bounds one status call to the runtime.
const statusTimeout = 30 * time.Second

// defaultParallel is the default number of concurrent pulls.
const defaultParallel = 5

// Options configures a Manager.
type Options struct {
	Service     runtimeapi.ImageServiceClient // of the runtime; required
	MaxParallel int                           // concurrent pulls; 0: 5
	QPS         float64                       // pulls that may start per second; 0: no limit
	Burst       int                           // pulls that may start at once after an idle period; at least 1
	Timeout     time.Duration                 // of a single pull; 0: none

	// Node are the credentials of the node. Nil: there are none.
	Node *NodeCredentials

	Verify  Verification        // credential verification for images that are on the node
	OnCheck func(result string) // called after each check whether a pod may use an image on the node; may be nil

	// DiskSpace returns the state of the image file system, if it is known. It must be fast and may
	// be called at any time. Nil: unknown, and all pulls may start.
	//
	// While there is not enough space for a pull, FreeSpace is called to remove unused images until
	// enough returns true. May be nil. OnWaitingForSpaceChanged is called whenever the result of
	// WaitingForSpace changes for an image. May be nil.
	DiskSpace                func() (s DiskSpace, known bool)
	FreeSpace                func(ctx context.Context, enough func() bool)
	OnWaitingForSpaceChanged func()
	Standalone               bool // there is no API server: see podspec.Critical

	// DownloadProgress returns the progress of the runtime's current downloads, for users. Empty:
	// unknown. May be nil.
	DownloadProgress func() string

	// Warn receives problems that do not fail a pull: a pull secret that is missing or invalid. The
	// reason is that of an event. May be nil.
	Warn func(pod *corev1.Pod, reason, message string)
	Now  func() time.Time // defaults to time.Now
}

// Manager manages the node's images. It is safe for concurrent use.
type Manager struct {
	service     runtimeapi.ImageServiceClient
	timeout     time.Duration
	warn        func(pod *corev1.Pod, reason, message string)
	now         func() time.Time
	node        *NodeCredentials
	verify      Verification
	onCheck     func(result string)
	records     *pullRecords
	limiter     *pullLimiter
	statusCalls *statusCalls
	pulls       *inflightPulls

	freeSpace                func(ctx context.Context, enough func() bool) // see Options.FreeSpace
	onWaitingForSpaceChanged func()
	freeing                  chan struct{} // held while space is being freed; capacity 1
	standalone               bool
	downloadProgress         func() string

	mu     sync.Mutex
	usage  map[string]imageUsage // by image ID: see gc.go
	listed bool                  // usage was filled once
}

// imageStatus is the runtime's status of one image.
type imageStatus struct {
	image   plan.Image
	present bool
}

// New returns the manager of the images of the runtime behind o.Service. The caller must close it.
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
	m := &Manager{
		service: o.Service, timeout: o.Timeout, warn: o.Warn, now: o.Now,
		node: o.Node, verify: o.Verify, onCheck: o.OnCheck, records: newPullRecords(o.Verify.RecordsDir, o.Now),
		limiter:     newPullLimiter(slots, o.QPS, o.Burst, o.Now),
		statusCalls: newStatusCalls(),
		pulls:       newInflightPulls(),
		usage:       map[string]imageUsage{},
		freeSpace:   o.FreeSpace, onWaitingForSpaceChanged: o.OnWaitingForSpaceChanged, freeing: make(chan struct{},
			1), standalone: o.Standalone, downloadProgress: o.DownloadProgress,
	}
	m.limiter.space = o.DiskSpace
	return m
}

// Close cancels the calls in progress and waits for their end. Later calls fail with kind Canceled.
func (m *Manager) Close() {
	m.limiter.close()
	m.pulls.close()
	m.statusCalls.close()
}

// Present reports whether an image is on the node and the pod may use it. secrets are the pull
// secrets that the pod references. The runtime is called every time, because a name may refer to
// another image by now, but concurrent callers share one call. Errors are *plan.Error with reason
// InvalidImageName or ImageInspectError.
func (m *Manager) Present(ctx context.Context, pod *corev1.Pod, image string,
	secrets plan.Objects) (plan.Image, bool, error) {
	n, err := podspec.ParseImageName(image)
	if err != nil {
		return plan.Image{}, false, invalidName(image, err)
	}
	img, present, err := m.status(ctx, image, n)
	if err != nil || !present || !m.verifyAccess(ctx, pod, n, img.ID, secrets) {
		return plan.Image{}, false, err
	}
	return img, true, nil
}

// Observe is Present for several images.
func (m *Manager) Observe(ctx context.Context, pod *corev1.Pod, images []string,
	secrets plan.Objects) plan.ImageStatuses {
	observed := make(plan.ImageStatuses, len(images))
	for _, name := range images {
		img, present, err := m.Present(ctx, pod, name, secrets)
		s := plan.ImageStatus{Image: img, Present: present}
		if err != nil {
			s.Err = err.Error()
		}
		observed[name] = s
	}
	return observed
}

// status is Present without verification of the pod's access.
func (m *Manager) status(ctx context.Context, image string, n podspec.ImageName) (plan.Image, bool, error) {
	p, err := m.statusCalls.do(ctx, image, func(ctx context.Context) (imageStatus, error) {
		return m.inspect(ctx, withDefaultTag(image, n), n)
	})
	if err != nil {
		return plan.Image{}, false, inspectError(image, err)
	}
	if p.present {
		m.use(p.image)
	}
	return p.image, p.present, nil
}

// Resolve is Present for a container that is about to start: the error for an image that is not
// present has kind ImageGone.
func (m *Manager) Resolve(ctx context.Context, pod *corev1.Pod, image string,
	secrets plan.Objects) (plan.Image, error) {
	img, present, err := m.Present(ctx, pod, image, secrets)
	if err == nil && !present {
		err = &plan.Error{Kind: plan.ImageNotFound, Reason: "CreateContainerError",
			Err: fmt.Errorf("image %q is no longer present on the node", image)}
	}
	return img, err
}

// inspect gets the status of ref. The Ref of the image is its digest in the repository of n.
func (m *Manager) inspect(ctx context.Context, ref string, n podspec.ImageName) (imageStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	at := m.now()
	resp, err := m.service.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	if err != nil {
		return imageStatus{}, err
	}
	img := resp.GetImage()
	if img == nil {
		return imageStatus{}, nil
	}
	if img.GetId() == "" {
		return imageStatus{}, errors.New("the runtime returned an image without an ID")
	}
	p := imageStatus{present: true, image: plan.Image{ID: img.GetId(), Ref: repoDigest(img, n), Size: img.GetSize(),
		InspectedAt: at}}
	if uid := img.GetUid(); uid != nil {
		p.image.UID = &uid.Value
	} else {
		p.image.User = img.GetUsername()
	}
	return p, nil
}

// repoDigest returns the image's digest in the requested repository, or in any other, or its ID if
// it has no digest.
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

// latest is the default tag.
const latest = "latest"

// withDefaultTag returns the name for the runtime: that of the pod, with the default tag if it has
// neither tag nor digest. The registry host is not added, because the runtime may resolve short
// names itself.
func withDefaultTag(image string, n podspec.ImageName) string {
	last := image[strings.LastIndex(image, "/")+1:]
	if n.Tag == latest && n.Digest == "" && !strings.Contains(last, ":") {
		return image + ":" + latest
	}
	return image
}
