"""A scheduler of vLLM that submits as many drafts of each request as it may, whether or not so many were made."""

from vllm.v1.core.sched.scheduler import Scheduler

DRAFTS = 4


class Padded(Scheduler):
    def update_draft_token_ids(self, drafts):
        super().update_draft_token_ids(drafts)
        for name in drafts.req_ids:
            request = self.requests.get(name)
            if request is not None and not request.is_finished() and not request.is_prefill_chunk:
                request.spec_token_ids += [0] * (DRAFTS - len(request.spec_token_ids))
