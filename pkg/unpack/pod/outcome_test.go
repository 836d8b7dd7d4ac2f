// Copyright The rukpak-apiserver Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"rukpak.io/apiserver/pkg/apis/rukpak/v1alpha1"
	"rukpak.io/apiserver/pkg/unpack/contract"
)

func mainStatus(state corev1.ContainerState) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{Name: ContainerUnpack, State: state}}}
}

func waits(reason, message string) corev1.PodStatus {
	return mainStatus(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}})
}

func ended(code int32, reason, message string) corev1.PodStatus {
	return mainStatus(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason, Message: message}})
}

func withPhase(s corev1.PodStatus, phase corev1.PodPhase, reason, message string) corev1.PodStatus {
	s.Phase, s.Reason, s.Message = phase, reason, message
	return s
}

func withInit(s corev1.PodStatus, name string, state corev1.ContainerState) corev1.PodStatus {
	s.InitContainerStatuses = append(s.InitContainerStatuses, corev1.ContainerStatus{Name: name, State: state})
	return s
}

func disruption(reason, message string) corev1.PodStatus {
	s := mainStatus(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	s.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason, Message: message}}
	return s
}

func TestJudge(t *testing.T) {
	initializing := waits("PodInitializing", "")
	sidecarAlive := ended(0, "Completed", "")
	sidecarAlive.Phase = corev1.PodRunning
	sidecarAlive.ContainerStatuses = append(sidecarAlive.ContainerStatuses, corev1.ContainerStatus{Name: "sidecar", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
	unschedulable := corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		Message: "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
	}}}
	disrupted := mainStatus(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	disrupted.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Message: "Eviction API: evicting"}}

	for name, test := range map[string]struct {
		status  corev1.PodStatus
		deleted bool
		want    Outcome
		words   string // part of the message
	}{
		"new":             {want: Outcome{State: Waiting}},
		"unschedulable":   {status: unschedulable, want: Outcome{State: Waiting, Reason: v1alpha1.ReasonUnschedulable}, words: "0/1 nodes are available"},
		"creating":        {status: waits("ContainerCreating", ""), want: Outcome{State: Waiting}},
		"running":         {status: mainStatus(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}), want: Outcome{State: Running}},
		"done":            {status: ended(0, "Completed", ""), want: Outcome{State: Succeeded}},
		"sidecar lives":   {status: sidecarAlive, want: Outcome{State: Succeeded}},
		"done and gone":   {status: ended(0, "Completed", ""), deleted: true, want: Outcome{State: Succeeded}},
		"deleted":         {status: mainStatus(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}), deleted: true, want: Outcome{State: Failed, Reason: v1alpha1.ReasonPodDeleted}},
		"evicted by API":  {status: disrupted, deleted: true, want: Outcome{State: Failed, Reason: v1alpha1.ReasonEvicted}, words: "evicting"},
		"evicted by node": {status: withPhase(corev1.PodStatus{}, corev1.PodFailed, "Evicted", "The node was low on resource: memory."), want: Outcome{State: Failed, Reason: v1alpha1.ReasonEvicted}, words: "low on resource"},
		"preempted": {status: disruption("PreemptionByScheduler", "default-scheduler: preempting to accommodate a higher priority pod"), deleted: true,
			want: Outcome{State: Failed, Reason: v1alpha1.ReasonPreempted}, words: "higher priority pod"},
		"preempted by node": {status: withPhase(disruption("TerminationByKubelet", ""), corev1.PodFailed, "Preempting", "Preempted in order to admit critical pod"),
			want: Outcome{State: Failed, Reason: v1alpha1.ReasonPreempted}, words: "admit critical pod"},
		"tainted":         {status: disruption("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"), deleted: true, want: Outcome{State: Failed, Reason: v1alpha1.ReasonNodeLost}, words: "NoExecute"},
		"node is gone":    {status: withPhase(disruption("DeletionByPodGC", "PodGC: node no longer exists"), corev1.PodFailed, "", ""), want: Outcome{State: Failed, Reason: v1alpha1.ReasonNodeLost}, words: "no longer exists"},
		"node lost":       {status: withPhase(mainStatus(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}), corev1.PodRunning, "NodeLost", "Node n which was running pod p is unresponsive"), want: Outcome{State: Failed, Reason: v1alpha1.ReasonNodeLost}, words: "unresponsive"},
		"short of disk":   {status: withPhase(disruption("TerminationByKubelet", "The node was low on resource: ephemeral-storage."), corev1.PodFailed, "Evicted", "x"), want: Outcome{State: Failed, Reason: v1alpha1.ReasonEvicted}, words: "ephemeral-storage"},
		"node shuts down": {status: withPhase(corev1.PodStatus{}, corev1.PodFailed, "Terminated", "Pod was terminated in response to imminent node shutdown."), want: Outcome{State: Failed, Reason: v1alpha1.ReasonEvicted}, words: "shutdown"},
		"node refuses":    {status: withPhase(corev1.PodStatus{}, corev1.PodFailed, "OutOfcpu", "Node didn't have enough resource: cpu"), want: Outcome{State: Failed, Reason: v1alpha1.ReasonPodFailed}, words: "OutOfcpu"},
		"deadline": {
			status: withPhase(ended(137, "Error", `{"reason":"UploadFailed","message":"upload: connection refused"}`), corev1.PodFailed, "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"),
			want:   Outcome{State: Failed, Reason: v1alpha1.ReasonDeadlineExceeded}, words: "connection refused",
		},
		"no such tag": {
			status: waits("ErrImagePull", `rpc error: code = NotFound desc = failed to pull and unpack image "127.0.0.1:5000/denied/app:nope": failed to resolve reference "127.0.0.1:5000/denied/app:nope": 127.0.0.1:5000/denied/app:nope: not found`),
			want:   Outcome{State: Waiting, Failing: true, Reason: v1alpha1.ReasonImageNotFound}, words: "no such image: failed to pull",
		},
		"registry down": {
			status: waits("ImagePullBackOff", `Back-off pulling image "127.0.0.1:1/a:b": ErrImagePull: failed to do request: Head "http://127.0.0.1:1/v2/a/manifests/b": dial tcp 127.0.0.1:1: connect: connection refused`),
			want:   Outcome{State: Waiting, Failing: true, Reason: v1alpha1.ReasonRegistryUnreachable}, words: "connection refused",
		},
		"unauthorized": {
			status: waits("ErrImagePull", `failed to authorize: failed to fetch anonymous token: unexpected status from GET request to https://auth.example/token: 401 Unauthorized`),
			want:   Outcome{State: Waiting, Failing: true, Reason: v1alpha1.ReasonImagePullUnauthorized},
		},
		"rate limited": {
			status: waits("ErrImagePull", `failed to pull and unpack image "docker.io/library/a:b": failed to copy: httpReadSeeker: failed open: unexpected status from GET request to https://registry-1.docker.io/v2/library/a/manifests/sha256:0: 429 Too Many Requests toomanyrequests: You have reached your unauthenticated pull rate limit.`),
			want:   Outcome{State: Waiting, Failing: true, Reason: v1alpha1.ReasonRateLimited}, words: "429",
		},
		"unknown authority": {
			status: waits("ErrImagePull", `failed to do request: Head "https://r/v2/a/manifests/b": tls: failed to verify certificate: x509: certificate signed by unknown authority`),
			want:   Outcome{State: Waiting, Failing: true, Reason: v1alpha1.ReasonRegistryNotTrusted}, words: "unknown authority",
		},
		"no TLS": {
			status: waits("ErrImagePull", `failed to do request: Head "https://r/v2/a/manifests/b": http: server gave HTTP response to HTTPS client`),
			want:   Outcome{State: Waiting, Failing: true, Reason: v1alpha1.ReasonRegistryNotTrusted}, words: "HTTP response",
		},
		"no handshake": {
			status: waits("ErrImagePull", `failed to do request: Head "https://r/v2/a/manifests/b": net/http: TLS handshake timeout`),
			want:   Outcome{State: Waiting, Failing: true, Reason: v1alpha1.ReasonRegistryUnreachable}, words: "handshake timeout",
		},
		"TLS broken": {
			status: waits("ErrImagePull", `failed to do request: Head "https://r/v2/a/manifests/b": remote error: tls: internal error`),
			want:   Outcome{State: Waiting, Failing: true, Reason: v1alpha1.ReasonRegistryUnreachable}, words: "internal error",
		},
		"other platform": {
			status: waits("ErrImagePull", `failed to pull and unpack image "a:b": no match for platform in manifest sha256:0: not found`),
			want:   Outcome{State: Waiting, Failing: true, Reason: v1alpha1.ReasonPlatformNotSupported}, words: "no match for platform",
		},
		"artifact": {
			status: waits("ErrImagePull", `unsupported image-specific operation on artifact with type "application/vnd.oci.empty.v1+json"`),
			want:   Outcome{State: Waiting, Failing: true, Reason: v1alpha1.ReasonArtifactNotSupported}, words: "on artifact",
		},
		"pull fails":               {status: waits("ErrImagePull", "no space left on device"), want: Outcome{State: Waiting, Failing: true, Reason: v1alpha1.ReasonImagePullFailed}, words: "no space left"},
		"too many pulls at a time": {status: waits("ImagePullBackOff", `Back-off pulling image "a": ErrImagePull: pull QPS exceeded`), want: Outcome{State: Waiting, Reason: v1alpha1.ReasonImagePullThrottled}, words: "no more images for the moment"},
		"too many, just now":       {status: waits("ErrImagePull", "pull QPS exceeded"), want: Outcome{State: Waiting, Reason: v1alpha1.ReasonImagePullThrottled}, words: "no more images for the moment"},
		"a registry says the same": {status: waits("ErrImagePull", `failed to pull image "a": unexpected status: 500, Server message: pull QPS exceeded`), want: Outcome{State: Waiting, Failing: true, Reason: v1alpha1.ReasonImagePullFailed}, words: "500"},
		"invalid name":             {status: waits("InvalidImageName", "couldn't parse image name"), want: Outcome{State: Failed, Reason: v1alpha1.ReasonInvalidImageReference}, words: "couldn't parse"},
		"never pulled":             {status: waits("ErrImageNeverPull", `Container image "a" is not present with pull policy of Never`), want: Outcome{State: Waiting, Failing: true, Reason: v1alpha1.ReasonImageNotFound}},
		"volume not an image": {
			status: waits("CreateContainerError", "failed to mount image volume: ImageVolumeMountFailed: failed to unpack image volume: mismatched image rootfs and manifest layers"),
			want:   Outcome{State: Waiting, Failing: true, Reason: v1alpha1.ReasonArtifactNotSupported}, words: "mismatched image rootfs",
		},
		// containerd 1.7, as kubernetes-sigs/kind#3745 has it.
		"runtime without image volumes": {
			status: waits("CreateContainerError", `failed to generate container "0a" spec: failed to apply OCI options: failed to mkdir "": mkdir : no such file or directory`),
			want:   Outcome{State: Waiting, Failing: true, Reason: v1alpha1.ReasonImageVolumeUnsupported}, words: "no image volumes",
		},
		// CRI-O before 1.31, as kubernetes/kubernetes#126734 has it.
		"other runtime without image volumes": {
			status: waits("CreateContainerError", "mount.HostPath is empty"),
			want:   Outcome{State: Waiting, Failing: true, Reason: v1alpha1.ReasonImageVolumeUnsupported}, words: "no image volumes",
		},
		"volume not mounted": {
			status: waits("CreateContainerError", "ImageVolumeMountFailed: failed to unpack image volume: no space left on device"),
			want:   Outcome{State: Waiting, Failing: true, Reason: v1alpha1.ReasonContainerFailed}, words: "as a volume: ImageVolumeMountFailed",
		},
		"no memory to start": {
			status: ended(128, "StartError", "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: container init was OOM-killed (memory limit too low?)"),
			want:   Outcome{State: Failed, Reason: v1alpha1.ReasonOutOfMemory}, words: "unpack.podTemplate.resources",
		},
		"no memory to start again": {
			status: waits("RunContainerError", "unable to start container process: container init was OOM-killed (memory limit too low?)"),
			want:   Outcome{State: Failed, Reason: v1alpha1.ReasonOutOfMemory}, words: "unpack.podTemplate.resources",
		},
		"cannot be created": {status: waits("CreateContainerError", "context deadline exceeded"), want: Outcome{State: Waiting, Failing: true, Reason: v1alpha1.ReasonContainerFailed}},
		"out of memory":     {status: ended(137, "OOMKilled", ""), want: Outcome{State: Failed, Reason: v1alpha1.ReasonOutOfMemory}, words: "resources"},
		"content refused": {
			status: ended(1, "Error", `{"reason":"ContentRefused","message":"entry \"dev/null\": is a device"}`),
			want:   Outcome{State: Failed, Reason: contract.ReasonContentRefused}, words: `entry "dev/null": is a device`,
		},
		"limit exceeded":       {status: ended(1, "Error", `{"reason":"LimitExceeded","message":"m"}`), want: Outcome{State: Failed, Reason: contract.ReasonLimitExceeded}, words: "m"},
		"image empty":          {status: ended(1, "Error", `{"reason":"ImageEmpty","message":"m"}`), want: Outcome{State: Failed, Reason: contract.ReasonImageEmpty}, words: "m"},
		"server away":          {status: ended(1, "Error", `{"reason":"ServerUnreachable","message":"m"}`), want: Outcome{State: Failed, Reason: contract.ReasonServerUnreachable}, words: "m"},
		"invented reason":      {status: ended(1, "Error", `{"reason":"Fine","message":"m"}`), want: Outcome{State: Failed, Reason: v1alpha1.ReasonContainerFailed}, words: "m"},
		"no report":            {status: ended(2, "Error", "fatal error:\n\tout of\x00 cheese"), want: Outcome{State: Failed, Reason: v1alpha1.ReasonContainerFailed}, words: "exit code 2: fatal error: out of cheese"},
		"cannot be run":        {status: ended(128, "StartError", "exec format error"), want: Outcome{State: Failed, Reason: v1alpha1.ReasonContainerFailed}, words: "exec format error"},
		"install fails":        {status: withInit(initializing, ContainerInstall, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Reason: "Error"}}), want: Outcome{State: Failed, Reason: v1alpha1.ReasonContainerFailed}, words: ContainerInstall},
		"init report no proof": {status: withInit(initializing, ContainerInstall, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1, Message: `{"reason":"ContentRefused","message":"m"}`}}), want: Outcome{State: Failed, Reason: v1alpha1.ReasonContainerFailed}},
		"failed for nothing":   {status: corev1.PodStatus{Phase: corev1.PodFailed}, want: Outcome{State: Failed, Reason: v1alpha1.ReasonPodFailed}},
	} {
		t.Run(name, func(t *testing.T) {
			p := &corev1.Pod{Status: test.status}
			if test.deleted {
				p.DeletionTimestamp = &metav1.Time{}
			}
			got := Judge(p)
			if !strings.Contains(got.Message, test.words) {
				t.Errorf("message %q does not say %q", got.Message, test.words)
			}
			if got.Reason != "" && got.Message == "" {
				t.Errorf("reason %s comes without a word", got.Reason)
			}
			got.Message = ""
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestMessagesStayTheSameWhileTheCauseDoes(t *testing.T) {
	pull := `failed to pull and unpack image "a:b": failed to resolve reference "a:b": failed to do request: Head "https://a/v2/b": dial tcp: lookup a: no such host`
	crash := "%s restarting failed container"
	for name, messages := range map[string][]corev1.PodStatus{
		"pull and back-off": {
			waits("ErrImagePull", pull),
			waits("ImagePullBackOff", `Back-off pulling image "a:b": ErrImagePull: `+pull),
		},
		"times": {
			waits("CreateContainerError", strings.ReplaceAll(crash, "%s", "back-off 10s")),
			waits("CreateContainerError", strings.ReplaceAll(crash, "%s", "back-off 2m40s")),
		},
		"sandboxes": {
			waits("CreateContainerError", `failed to start sandbox "`+strings.Repeat("0a", 32)+`": no CNI`),
			waits("CreateContainerError", `failed to start sandbox "`+strings.Repeat("1b", 32)+`": no CNI`),
		},
		"ports": {
			waits("ErrImagePull", "read tcp 10.0.0.1:41234->10.0.0.2:443: read: connection reset by peer"),
			waits("ErrImagePull", "read tcp 10.0.0.1:55555->10.0.0.2:443: read: connection reset by peer"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := Judge(&corev1.Pod{Status: messages[0]}), Judge(&corev1.Pod{Status: messages[1]})
			if a != b {
				t.Errorf("%+v\nis not\n%+v", a, b)
			}
		})
	}
}

func TestWordsAreBounded(t *testing.T) {
	if got := Words("w", strings.Repeat("\xffü\n", 10_000)); len(got) > maxMessage || strings.Contains(got, "\n") || !utf8.ValidString(got) {
		t.Errorf("%d bytes: %.60q", len(got), got)
	}
}

func TestJudgeEvent(t *testing.T) {
	for text, want := range map[string]string{
		`Failed to pull image "a": pull QPS exceeded`:                               v1alpha1.ReasonImagePullThrottled,
		`Failed to pull image "a": denied: Server message: pull QPS exceeded`:       v1alpha1.ReasonImagePullUnauthorized,
		`Failed to pull image "a": b: not found`:                                    v1alpha1.ReasonImageNotFound,
		`MountVolume.SetUp failed for volume "token": the authority is not at home`: v1alpha1.ReasonContainerFailed,
	} {
		if o := JudgeEvent(text); o.Reason != want || o.State != Waiting {
			t.Errorf("%q is %+v, want %s", text, o, want)
		}
	}
}
