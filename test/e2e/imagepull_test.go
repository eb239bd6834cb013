package e2e

import (
	"encoding/base64"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/types"
	corev1 "k8s.io/api/core/v1"

	"berth/test/hosts"
	"berth/test/images"
)

// testbox returns the testbox image.
func (s *Namespace) testbox() v1.Image {
	s.t.Helper()
	a, err := findArchive(images.TestboxRef)
	if err != nil {
		s.t.Fatal(err)
	}
	img, err := images.Load(a.Path)
	if err != nil {
		s.t.Fatal(err)
	}
	return img
}

// pushLargeImage pushes the testbox image with an additional layer of size random bytes to a registry.
// It returns the repository.
func (s *Namespace) pushLargeImage(r *images.Registry, name string, size int64) string {
	s.t.Helper()
	layer, err := random.Layer(size, types.DockerLayer)
	if err != nil {
		s.t.Fatal(err)
	}
	withLayer, err := mutate.AppendLayers(s.testbox(), layer)
	if err != nil {
		s.t.Fatal(err)
	}
	repo := s.ns + "/" + name
	if err := r.PushImage(s.t.Context(), "docker.io/"+repo+":1", withLayer); err != nil {
		s.t.Fatal(err)
	}
	return repo
}

// pushImage pushes the testbox image with a unique ID and name to a registry, so the node has to pull
// it. It returns the repository.
func (s *Namespace) pushImage(r *images.Registry, name string) string {
	s.t.Helper()
	img := s.testbox()
	c, err := img.ConfigFile()
	if err != nil {
		s.t.Fatal(err)
	}
	config := *c.Config.DeepCopy()
	config.Labels = map[string]string{"of": s.ns + name}
	var labeled v1.Image
	if labeled, err = mutate.Config(img, config); err != nil {
		s.t.Fatal(err)
	}
	repo := s.ns + "/" + name
	if err := r.PushImage(s.t.Context(), "docker.io/"+repo+":1", labeled); err != nil {
		s.t.Fatal(err)
	}
	return repo
}

func imageBox(name, image, more string, steps ...string) string {
	return strings.Replace(box(name, more, steps...), "berth/testbox:1", "'"+image+"'", 1)
}

func TestImagePullPolicies(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		repo := s.pushImage(s.Open, "policy")
		s.Pod("absent", "containers:\n"+imageBox("c", repo+":1", "imagePullPolicy: Never", "sleep"))
		p := s.Waiting("absent", "c", "ErrImageNeverPull")
		s.contains("the message", status(p, "c").State.Waiting.Message, repo, "Never")
		if n := s.Open.Counts(repo); n.Manifests != 0 {
			t.Errorf("unexpected pull: %+v", n)
		}
		s.Event("absent", `ErrImageNeverPull: Container image "`+repo+`:1" is not present with pull policy of Never`)
		s.Event("absent", "Failed: Error: ErrImageNeverPull")

		s.Pod("lazy", "containers:\n"+imageBox("c", repo+":1", "", "sleep"))
		s.Running("lazy")
		after := s.Open.Counts(repo)
		if after.Manifests == 0 || after.Blobs == 0 {
			t.Errorf("image was not pulled: %+v", after)
		}
		s.Event("lazy", `Pulling: Pulling image "`+repo+`:1"`)
		s.Event("lazy", `Pulled: Successfully pulled image "`+repo+`:1" in `)
		// Now the image is present: the pod with policy Never starts.
		s.Running("absent")
		s.Pod("lazy2", "containers:\n"+imageBox("c", repo+":1", "imagePullPolicy: IfNotPresent", "sleep"))
		s.Running("lazy2")
		s.Event("lazy2", "Pulled: Container image \""+repo+":1\" already present on machine")
		if n := s.Open.Counts(repo); n.Blobs != after.Blobs || n.Manifests != after.Manifests {
			t.Errorf("a present image was pulled: %+v, then %+v", after, n)
		}
		s.Pod("eager", "containers:\n"+imageBox("c", repo+":1", "imagePullPolicy: Always", "sleep"))
		s.Running("eager")
		s.Event("eager", `Pulled: Successfully pulled image "`+repo+`:1" in `)
	})
}

func TestMissingImageBacksOffAndRecovers(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		image := s.ns + "/late:1"
		s.Pod("late", "containers:\n"+imageBox("c", image, "", "sleep"))
		p := s.Waiting("late", "c", "ErrImagePull")
		s.contains("the message", status(p, "c").State.Waiting.Message, image, "not found")
		s.Event("late", "Failed: Failed to pull image \""+image+"\"")
		p = s.Waiting("late", "c", "ImagePullBackOff")
		s.contains("the message", status(p, "c").State.Waiting.Message, "Back-off pulling image \""+image+"\"")
		s.Event("late", "BackOff: Back-off pulling image")
		s.Event("late", "Failed: Error: ImagePullBackOff")
		s.waitWhy("late", "ImagePullBackOff", image)
		s.pushImage(s.Open, "late")
		s.Running("late")
	})
}

func TestInvalidImageNameIsReported(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("odd", "containers:\n"+imageBox("c", "Not/An_Image:UP:CASE", "", "sleep"))
		p := s.Waiting("odd", "c", "InvalidImageName")
		s.contains("the message", status(p, "c").State.Waiting.Message, "Not/An_Image:UP:CASE")
		s.Event("odd", `InspectFailed: Failed to apply default image tag "Not/An_Image:UP:CASE": invalid `+
			`reference format`)
		s.Event("odd", "Failed: Error: InvalidImageName")
		for _, e := range s.Events("odd") {
			if strings.HasPrefix(e, "Pulling") {
				t.Errorf("an image with an invalid name was pulled: %s", e)
			}
		}
	})
}

// pullSecret returns a Secret with a password for the private registry.
func pullSecret(name, password string) string {
	auth := base64.StdEncoding.EncodeToString([]byte(privateUser + ":" + password))
	config := base64.StdEncoding.EncodeToString([]byte(`{"auths": {"` + privateHost + `": {"auth": "` + auth + `"}}}`))
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: NS}\ntype: "+
		"kubernetes.io/dockerconfigjson\ndata: {.dockerconfigjson: %s}\n", name, config)
}

func pullFailed(p *corev1.Pod) bool {
	w := status(p, "c").State.Waiting
	return w != nil && (w.Reason == "ErrImagePull" || w.Reason == "ImagePullBackOff")
}

func TestPrivateImageRequiresCredentials(t *testing.T) {
	forEachNewNode(t, nodeOptions{CNI: true}, func(t *testing.T, s *Namespace) {
		repo := s.pushImage(s.Private, "mine")
		image := privateHost + "/" + repo + ":1"
		pod := func(name, more, policy string) string {
			return podYAML(name, "", more+"\ncontainers:\n"+imageBox("c", image, "imagePullPolicy: "+policy, "sleep"))
		}
		s.Put("owner", pullSecret("key", privatePassword)+"---\n"+pod("owner", "imagePullSecrets: [{name: key}]",
			"IfNotPresent"))
		s.Running("owner")
		pulled := s.Private.Counts(repo)
		s.Put("no-credentials", pod("bare", "", "IfNotPresent")+"---\n"+pod("never", "", "Never")+"---\n"+
			pullSecret("guessed", "guess")+"---\n"+pod("guesser", "imagePullSecrets: [{name: guessed}]",
			"IfNotPresent"))
		s.Wait("bare", "failing to pull", pullFailed)
		s.Wait("guesser", "failing to pull", pullFailed)
		p := s.Waiting("never", "c", "ErrImageNeverPull")
		s.contains("the message", status(p, "c").State.Waiting.Message, "is not present with pull policy of Never")
		// A pod with the same credentials needs no pull, whatever the name of its Secret.
		s.Put("same-credentials", pullSecret("copy", privatePassword)+"---\n"+
			pod("same-credentials", "imagePullSecrets: [{name: copy}]", "IfNotPresent"))
		s.Running("same-credentials")
		s.Event("same-credentials",
			`Pulled: Container image "`+image+`" already present on machine and can be accessed by the pod`)
		if n := s.Private.Counts(repo); n.Blobs != pulled.Blobs {
			t.Errorf("the image was pulled again: %+v, then %+v", pulled, n)
		}
		// The agent remembers the credentials after a restart.
		s.Remove("no-credentials")
		s.WaitDeleted("bare")
		s.KillAndRestartAgent()
		s.Put("later", pod("later", "", "IfNotPresent"))
		s.Wait("later", "failing to pull", pullFailed)
		s.Put("later", pullSecret("new", privatePassword)+"---\n"+pod("later2", "imagePullSecrets: [{name: new}]",
			"Never"))
		s.Running("later2")
	})
}

func TestPullSecretsFromFiles(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		pod := func(name, secret string) string {
			repo := s.pushImage(s.Private, name)
			return podYAML(name, "", "imagePullSecrets: [{name: "+secret+"}]\ncontainers:\n"+
				imageBox("c", privateHost+"/"+repo+":1", "", "sleep"))
		}
		s.Put("valid", pullSecret("valid-key", privatePassword)+"---\n"+pod("valid", "valid-key"))
		s.Put("wrong", pullSecret("wrong-key", "guess")+"---\n"+pod("wrong", "wrong-key"))
		s.Put("none", pod("none", "no-key"))
		s.Running("valid")
		for _, name := range []string{"wrong", "none"} {
			p := s.Wait(name, "failing to pull", pullFailed)
			if n := s.Private.Counts(s.ns + "/" + name); n.Unauthorized == 0 || n.Blobs != 0 {
				t.Errorf("%s: %+v", name, n)
			}
			s.contains(name, strings.Join(s.Events(name), "\n")+brief(p), privateHost)
		}
		s.Event("none", "FailedToRetrieveImagePullSecret: ")
		// Add the missing secret and correct the wrong one.
		s.Put("key", pullSecret("no-key", privatePassword))
		s.Put("wrong", pullSecret("wrong-key", privatePassword)+"---\n"+pod("wrong", "wrong-key"))
		s.Running("none")
		s.Running("wrong")
		if all := s.Agent.Log(); strings.Contains(all, privatePassword) ||
			strings.Contains(all, base64.StdEncoding.EncodeToString([]byte(privateUser+":"+privatePassword))) {
			t.Error("the agent's log contains the password")
		}
	})
}

func TestScenario05_TwentyPodsShareOnePull(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		repo := s.pushImage(s.Open, "shared")
		release := s.Open.BlockBlobs(repo)
		defer release()
		var list strings.Builder
		for i := range 20 {
			list.WriteString(podYAML(fmt.Sprintf("p%d", i), "", "restartPolicy: Never\ncontainers:\n"+
				imageBox("c", repo+":1", "", "exit 0")))
			list.WriteString("---\n")
		}
		s.Put("twenty", list.String())
		// All pods request the pull while it is blocked.
		for i := range 20 {
			s.Event(fmt.Sprintf("p%d", i), "Pulling: ")
		}
		release()
		for i := range 20 {
			s.Phase(fmt.Sprintf("p%d", i), corev1.PodSucceeded)
		}
		img, err := findArchive(images.TestboxRef)
		if err != nil {
			t.Fatal(err)
		}
		loaded, err := images.Load(img.Path)
		if err != nil {
			t.Fatal(err)
		}
		layers, err := loaded.Layers()
		if err != nil {
			t.Fatal(err)
		}
		if n := s.Open.Counts(repo); n.Manifests > 1 || n.Blobs > len(layers)+1 {
			t.Errorf("image of %d layers and a config: got %+v requests, want one pull", len(layers), n)
		}
	})
}

func TestScenario05_ImagesOfPodArePulledInParallel(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		var spec strings.Builder
		var repos []string
		for i := range 5 {
			repo := s.pushImage(s.Open, fmt.Sprintf("five-%d", i))
			defer s.Open.BlockBlobs(repo)()
			repos = append(repos, repo)
			spec.WriteString(imageBox(fmt.Sprintf("c%d", i), repo+":1", "", "serve 808"+fmt.Sprint(i)))
		}
		s.Pod("five", "containers:\n"+spec.String())
		err := hosts.WaitFor(t.Context(), "five parallel pulls", func() (bool, error) {
			for _, r := range repos {
				if s.Open.Counts(r).Blocked == 0 {
					return false, nil
				}
			}
			return true, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		s.waitWhy("five", "PullImage", repos[0])
	})
}

// TestPullReportsProgress blocks the pull of a large image halfway.
func TestPullReportsProgress(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		const size = 8 << 20
		repo := s.pushLargeImage(s.Open, "large", size)
		release := s.Open.BlockBlobsHalfway(repo)
		defer release()
		s.Pod("large", "containers:\n"+imageBox("c", repo+":1", "", "sleep"))
		progress := regexp.MustCompile(regexp.QuoteMeta(repo) +
			`:1, for 1 pods; downloads of the runtime: ([0-9.]+) of ([0-9.]+) MiB`)
		var out string
		err := hosts.WaitFor(t.Context(), "half of the image to be downloaded", func() (bool, error) {
			out, _ = s.Try("why", "-n", s.ns, "large")
			m := progress.FindStringSubmatch(out)
			if m == nil {
				return false, nil
			}
			downloaded, _ := strconv.ParseFloat(m[1], 64)
			total, _ := strconv.ParseFloat(m[2], 64)
			return downloaded >= 3.5 && total >= 8 && downloaded < total, nil // includes the pulls of other tests
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		release()
		s.Running("large")
	})
}
