package cis

import (
	"strings"

	"berth/control/controllers"
	"berth/internal/cis"
)

const noPort = "the controllers and the scheduler are parts of the server and have no port of their own"

// controllerChecks returns the checks of sections 1.3 and 1.4.
func controllerChecks() map[string]check {
	return map[string]check{
		"1.3.1": podGarbage,
		"1.3.2": live(profiling),
		"1.3.3": ofCluster(controllerIdentities),
		"1.3.4": ofFiles(accountKey),
		"1.3.5": ofCluster(rootCA),
		"1.3.6": requiredController(controllers.CSRSigning, "signs the serving certificates of nodes"),
		"1.3.7": absent(noPort),
		"1.4.1": live(profiling),
		"1.4.2": absent(noPort),
	}
}

func requiredController(name, what string) check {
	return func(f *Facts) cis.Finding {
		if !f.Config.ControllerEnabled(name) {
			return cis.Failed("enable it with --controllers", "%s, which %s, is disabled", name, what)
		}
		return cis.Passed("%s %s", name, what)
	}
}

// controllerPrefix is the prefix of the names of roles and bindings of controllers.
const controllerPrefix = "system:controller:"

func controllerIdentities(_ *Facts, c *Cluster) cis.Finding {
	count := 0
	for _, b := range c.ClusterRoleBindings {
		if isDefault(b.Labels) && strings.HasPrefix(b.Name, controllerPrefix) {
			count++
		}
	}
	if count == 0 {
		return cis.Failed("restart the server, which restores them", "there are no bindings %sNAME", controllerPrefix)
	}
	return cis.Passed("controllers have the identities of their service accounts, limited by %d bindings %sNAME; no "+
		"setting turns that off", count, controllerPrefix)
}

func podGarbage(f *Facts) cis.Finding {
	if !f.Config.ControllerEnabled(controllers.PodGC) {
		return cis.Failed("enable it with --controllers", "%s is disabled: terminated pods are kept", controllers.PodGC)
	}
	return cis.ToReview("whether so many terminated pods fit into the store; Jobs limit theirs with "+
		"ttlSecondsAfterFinished and history limits", "%s keeps at most %d terminated pods, the default of Kubernetes",
		controllers.PodGC, controllers.DefaultTerminatedPodGCThreshold)
}

func rootCA(f *Facts, c *Cluster) cis.Finding {
	if !f.Config.ControllerEnabled(controllers.RootCA) {
		return cis.Failed("enable it with --controllers", "%s is disabled", controllers.RootCA)
	}
	if len(c.WithRootCA) == 0 {
		return cis.Failed("see the log of the server", "no namespace has the ConfigMap "+rootCAName)
	}
	return cis.Passed("pods get the CA of the server in the ConfigMap %s, which %d of %d namespaces have", rootCAName,
		len(c.WithRootCA), len(c.Namespaces))
}

// storeChecks returns the checks of chapter 2.
func storeChecks() map[string]check {
	all := map[string]check{}
	for id, reason := range map[string]string{
		"2.1": "clients use a Unix socket", "2.2": "clients use a Unix socket", "2.3": "clients use a Unix socket",
		"2.4": "the store has a single member without peers", "2.5": "the store has a single member without peers",
		"2.6": "the store has a single member without peers", "2.7": "there are no certificates of etcd",
	} {
		all[id] = ofFiles(func(f *Facts) cis.Finding {
			if f.external() {
				return etcdPod(f)
			}
			if found := storeMode(f); found.Verdict != cis.Pass {
				return found
			}
			return cis.Absent("the embedded store listens on no network address: %s, in a directory with mode %04o",
				reason, f.Files.Store.Mode)
		})
	}
	return all
}

// external reports whether the store is an external etcd cluster.
func (f *Facts) external() bool { return len(f.Config.Etcd.Endpoints) > 0 }

const noStoreClient = "the embedded store listens on a Unix socket in a private directory"

func storeClient(f *Facts) cis.Finding {
	if !f.external() {
		return cis.Absent(noStoreClient)
	}
	if f.Config.Etcd.CertFile == "" || f.Config.Etcd.KeyFile == "" {
		return cis.Failed("set --etcd-certfile and --etcd-keyfile", "the server has no client certificate for etcd")
	}
	return cis.Passed("--etcd-certfile=%s", f.Config.Etcd.CertFile)
}

func storeAuthority(f *Facts) cis.Finding {
	if !f.external() {
		return cis.Absent(noStoreClient)
	}
	var plain []string
	for _, url := range f.Config.Etcd.Endpoints {
		if !strings.HasPrefix(url, "https://") && !strings.HasPrefix(url, "unix://") {
			plain = append(plain, url)
		}
	}
	switch {
	case len(plain) > 0:
		return cis.Failed("use https URLs in --etcd-servers", "connections are not encrypted: %s", cis.List(plain))
	case f.Config.Etcd.CAFile == "":
		return cis.Failed("set --etcd-cafile", "the server trusts all CAs of the host for etcd")
	}
	return cis.Passed("--etcd-cafile=%s", f.Config.Etcd.CAFile)
}
